"""`kvbench gate judge`: the verdict on runs that are stored already."""

from __future__ import annotations

from pathlib import Path

import click

from kvbench.cli.comparing import refusal_shown, vary_option
from kvbench.cli.gate_output import deliver, verdict_options
from kvbench.cli.output import format_option


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
@verdict_options
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
    from kvbench.report.ci.write import check_paths
    from kvbench.report.stored_gate import judge_folders

    check_paths(paths)
    with refusal_shown(form):
        verdict, context = judge_folders(
            [run_a, *baselines], [run_b, *candidates], metrics, vary, inconclusive=inconclusive
        )
    return deliver(verdict, context, form, paths, github)
