"""What the commands that end in a verdict share: their output options, and handing the verdict out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from kvbench.cli.comparing import differences_table
from kvbench.cli.output import Table, emit

if TYPE_CHECKING:
    from kvbench.analysis.gate.types import SuiteVerdict
    from kvbench.report.ci.context import GateContext

Command = TypeVar("Command", bound=Callable[..., Any])
inconclusive_option: Callable[[Any], Any] = click.option(
    "--inconclusive", type=click.Choice(["pass", "fail", "neutral"]), default="neutral", show_default=True,
    help="Exit 0, 1 or 3 for INCONCLUSIVE, and for a FAIL that is only advice.",
)  # fmt: skip
_OPTIONS = (
    inconclusive_option,
    click.option(
        "--write", "paths", multiple=True, type=click.Path(path_type=Path), metavar="FILE",
        help="Also write the verdict: .md, .xml (JUnit), .json or .parquet; repeatable.",
    ),
    click.option("--github", is_flag=True, help="Annotations on stderr, and Markdown into $GITHUB_STEP_SUMMARY."),
)  # fmt: skip


def verdict_options(command: Command) -> Command:
    """The options `inconclusive`, `paths` and `github`."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def deliver(verdict: SuiteVerdict, context: GateContext, form: str, paths: Sequence[Path], github: bool) -> int:
    """Print the verdict, write the files, tell GitHub; the exit code."""
    from kvbench.console import say
    from kvbench.report.ci.write import tell_github, write_verdict

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
