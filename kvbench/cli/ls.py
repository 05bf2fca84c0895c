"""`kvbench ls`: the runs under a folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kvbench.cli.output import Table, emit, format_option
from kvbench.store.listing import SORTS

if TYPE_CHECKING:
    from kvbench.store.listing import RunEntry

_HEADS = ("run", "when (UTC)", "device", "clock", "cases", "ok", "failed", "of", "took", "size", "state")
_COLUMNS = (
    "run_id", "suite", "created_at", "device", "clock", "cases", "ok_samples", "failed_samples", "planned_samples",
    "duration_s", "size_bytes", "state", "note", "path",
)  # fmt: skip


@click.command(name="ls")
@click.argument("folder", type=click.Path(path_type=Path), default=Path("results"))
@format_option
@click.option(
    "--sort", type=click.Choice(SORTS), default="when", show_default=True, help="The newest, largest … comes last."
)
def list_runs(folder: Path, form: str, sort: str) -> None:
    """Runs under FOLDER (by default results/): what ran, when, where, how it ended.

    ok, failed and of count samples: those that ended ok, those that did not, and those that were planned. Runs that are
    not finished, are being written or are damaged say so.
    """
    from kvbench.console import say
    from kvbench.store.listing import list_runs as listed

    runs = listed(folder, sort)
    if not runs and form == "table":
        is_run = (folder / "plan.json").exists()
        say(f"{folder} is a run itself: kvbench show {folder}" if is_run else f"no runs in {folder}")
        return
    rows = [_row(run) for run in runs]
    table = Table("", _HEADS, rows, frozenset({4, 5, 6, 7, 8, 9}))
    emit(form, tables=[table], columns=_COLUMNS, records=[_record(run) for run in runs])


def _row(run: RunEntry) -> list[str]:
    from kvbench.tabulate import value_cell
    from kvbench.units import format_bytes, format_duration

    when = value_cell((run.created_at or "")[:16].replace("T", " "))
    counts = [value_cell(n) for n in (run.cases, run.ok_samples, run.failed_samples, run.planned_samples)]
    took = value_cell(None if run.duration_s is None else format_duration(run.duration_s))
    state = f"{run.state}: {run.note}" if run.note else run.state
    return [run.run_id, when, value_cell(run.device), value_cell(run.clock), *counts, took,
            format_bytes(run.size_bytes), state]  # fmt: skip


def _record(run: RunEntry) -> dict[str, Any]:
    return {name: str(value) if isinstance(value := getattr(run, name), Path) else value for name in _COLUMNS}
