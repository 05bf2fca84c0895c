"""`kvbench gate trend`: every later run against a pinned reference."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kvbench.cli.comparing import refusal_shown, vary_option
from kvbench.cli.gate_output import inconclusive_option
from kvbench.cli.output import Table, emit, format_option

if TYPE_CHECKING:
    from kvbench.analysis.gate.types import Inconclusive, SuiteVerdict


@click.command()
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--reference", "references", multiple=True, required=True, type=click.Path(path_type=Path),
    help="A session of the pinned reference; repeatable, and three make a FAIL count.",
)  # fmt: skip
@click.option("--metric", "metrics", multiple=True, help="Judge this metric instead of the usual ones; repeatable.")
@vary_option
@inconclusive_option
@format_option
def trend(
    runs: tuple[Path, ...],
    references: tuple[Path, ...],
    metrics: tuple[str, ...],
    vary: tuple[str, ...],
    inconclusive: Inconclusive,
    form: str,
) -> int:
    """Judge each of RUNS, in the order given, against the same pinned reference.

    A creep of half a percent a week shows in no comparison with yesterday; here it is found when it adds up to the
    margin. The exit code is that of the last run: what holds today.

    \b
    Example:
      kvbench gate trend --reference r/1 --reference r/2 --reference r/3 results/week-*
    """
    from kvbench.report.stored_gate import judge_folders

    found: list[tuple[Path, SuiteVerdict, int]] = []
    with refusal_shown(form):
        for run in runs:
            verdict, context = judge_folders(references, [run], metrics, vary, inconclusive=inconclusive)
            found.append((run, verdict, context.exit_code))
    records = [record for run, verdict, _ in found for record in _records(run, verdict)]
    rows = [[r["run"], r["case"], r["metric"], _percent(r["effect"]), r["interval"], r["verdict"]] for r in records]
    columns = ("run", "case", "metric", "effect", "95 %", "verdict")
    emit(
        form,
        tables=[Table("Against the pinned reference; effects > 0 are worse", columns, rows, frozenset({3}))],
        columns=["run", "case_id", "case", "metric", "effect", "low", "high", "verdict", "advisory"],
        records=records,
    )
    return found[-1][2]


def _records(run: Path, verdict: SuiteVerdict) -> list[dict[str, Any]]:
    from kvbench.report.ci import context as words

    return [
        {
            "run": str(run), "case_id": case.case_id, "case": words.label(case), "metric": case.metric,
            "effect": case.effect, "low": case.low, "high": case.high, "interval": words.interval(case),
            "verdict": str(case.verdict), "advisory": case.advisory,
        }
        for case in words.ordered(verdict)
    ]  # fmt: skip


def _percent(value: float) -> str:
    from kvbench.report.ci.context import percent

    return percent(value)
