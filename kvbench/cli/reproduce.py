"""`kvbench reproduce`: a run again, from its manifest."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from kvbench.cli.output import format_option
from kvbench.errors import ExitCode

if TYPE_CHECKING:
    from kvbench.sweep.reproduce import Again


@click.command()
@click.argument("source", type=click.Path(path_type=Path), metavar="MANIFEST|RUN")
@click.option("-r", "--repetitions", type=click.IntRange(min=1), help="Samples per case; by default as many as it had.")
@click.option(
    "--out", type=click.Path(path_type=Path), default=Path("results"), show_default=True, help="Where the run goes."
)
@click.option("--dry-run", is_flag=True, help="Say what differs here and what would run; measure nothing.")
@format_option
def reproduce(source: Path, repetitions: int | None, out: Path, dry_run: bool, form: str) -> int:
    """Run again what a manifest.json or run folder recorded: suite, seeds, requests, KV memory, threads, order.

    Says on stderr what differs on this machine, runs, and then shows both runs side by side. The requests come from the
    run folder, so that no trace file is needed; a manifest alone needs the trace. Exits 4 where this machine cannot run
    the same, 3 when some case failed.

    \b
    Examples:
      kvbench reproduce results/<run> --dry-run
      kvbench reproduce manifest.json --out again
    """
    from kvbench.console import say
    from kvbench.sweep.reproduce import plan_again

    again = plan_again(source, repetitions=repetitions)
    for line in _told(again):
        say(line, style="yellow")
    if dry_run:
        from kvbench.sweep.dry_run import show

        show(again.plan, out, form)
        return ExitCode.OK
    return _run(again, out, form)


def _run(again: Again, out: Path, form: str) -> int:
    from kvbench.cli.compare import show_comparison
    from kvbench.console import say
    from kvbench.report.side_by_side import compare_runs
    from kvbench.report.tables import render_run
    from kvbench.sweep.reproduce import compared

    run, original = again.run(out), again.source.run
    failed = [row for row in run.case_values(()) if row["status"] != "ok"]
    if original is None or not original.case_values(()):
        say("the original's numbers are not here: only the new run is shown")
        render_run(run, form)
    else:
        show_comparison(compare_runs([original, run], [compared(again.source, run)]), form)
    say(f"run: {run.path}")
    return ExitCode.PARTIAL if failed else ExitCode.OK


def _told(again: Again) -> list[str]:
    from kvbench.tabulate import value_cell

    told = [
        f"differs here: {d.item}: {d.field} was {value_cell(d.left)}, is {value_cell(d.right)}"
        for d in again.differences
    ]
    return told or ["nothing that decides differs here"]
