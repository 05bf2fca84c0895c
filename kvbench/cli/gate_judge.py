"""`kvbench gate judge`: the verdict on runs that are stored already."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from kvbench.cli.comparing import differences_table, refusal_shown, vary_option
from kvbench.cli.output import Table, emit, format_option

if TYPE_CHECKING:
    from kvbench.analysis.gate.types import SuiteVerdict
    from kvbench.report.ci.context import GateContext


@click.command()
@click.argument("run_a", type=click.Path(path_type=Path))
@click.argument("run_b", type=click.Path(path_type=Path))
@click.option(
    "--baseline", "baselines", multiple=True, type=click.Path(path_type=Path), help="A further session of RUN_A's side."
)
@click.option(
    "--candidate", "candidates", multiple=True, type=click.Path(path_type=Path),
    help="A further session of RUN_B's side.",
)  # fmt: skip
@click.option("--metric", "metrics", multiple=True, help="Judge this metric instead of the usual ones; repeatable.")
@vary_option
@click.option(
    "--inconclusive", type=click.Choice(["pass", "fail", "neutral"]), default="neutral", show_default=True,
    help="Exit 0, 1 or 3 for INCONCLUSIVE, and for a FAIL that is only advice.",
)  # fmt: skip
@click.option(
    "--write", "paths", multiple=True, type=click.Path(path_type=Path), metavar="FILE",
    help="Also write the verdict: .md, .xml (JUnit), .json or .parquet; repeatable.",
)  # fmt: skip
@click.option("--github", is_flag=True, help="Annotations on stderr, and Markdown into $GITHUB_STEP_SUMMARY.")
@format_option
def judge(
    run_a: Path,
    run_b: Path,
    baselines: tuple[Path, ...],
    candidates: tuple[Path, ...],
    metrics: tuple[str, ...],
    vary: tuple[str, ...],
    inconclusive: str,
    paths: tuple[Path, ...],
    github: bool,
    form: str,
) -> int:
    """Judge the stored run RUN_B against RUN_A: paired t on log ratios, Holm over the cases, non-inferiority.

    Runs that were not taken side by side say less than `kvbench gate run` does: below three sessions of the baseline a
    FAIL is advice (exit 3). From three on (RUN_A and two of --baseline) the values are session means. Refuses, exit 4,
    when the runs differ in more than --vary; exit 5 for missing values and for a case on one side only.

    \b
    Examples:
      kvbench gate judge results/before results/after
      kvbench gate judge results/mon results/thu --baseline results/tue --baseline results/wed --write verdict.xml
    """
    from kvbench.console import say
    from kvbench.report.ci.write import check_paths, tell_github, write_verdict
    from kvbench.report.stored_gate import judge_folders

    check_paths(paths)
    with refusal_shown(form):
        verdict, context = judge_folders(
            [run_a, *baselines], [run_b, *candidates], metrics, vary, inconclusive=inconclusive
        )
    _show(verdict, context, form)
    write_verdict(verdict, context, paths)
    for line in tell_github(verdict, context) if github else ():
        say(line)
    return context.exit_code


def _show(verdict: SuiteVerdict, context: GateContext, form: str) -> None:
    from kvbench.report.ci import context as words
    from kvbench.report.ci.data import CASE_FIELDS, case_record, json_document
    from kvbench.report.ci.markdown import HEAD, RIGHT, markdown_summary, row

    if form == "md":
        click.echo(markdown_summary(verdict, context), nl=False)
        return
    cases = words.ordered(verdict)
    lines = [*words.explanations(verdict), *context.notes]
    tables = [Table(words.headline(verdict), HEAD, [row(case) for case in cases], RIGHT, footer=". ".join(lines))]
    differ = [d for d in context.differences if d.role == "treatment"]
    if differ:
        tables.append(differences_table("the sides differ in", differ))
    emit(
        form,
        tables=tables,
        columns=list(CASE_FIELDS),
        records=[case_record(case) for case in cases],
        document=json_document(verdict, context),
    )
