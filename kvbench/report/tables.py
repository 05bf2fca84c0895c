"""The door of the room: a run in one of four formats."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from kvbench.errors import UsageError
from kvbench.report.build import build_report
from kvbench.report.data import csv_report, json_report
from kvbench.report.pictures import pictures_for
from kvbench.report.text import markdown_report, print_report
from kvbench.store.run import Run
from kvbench.tabulate import FORMATS

if TYPE_CHECKING:
    from rich.console import Console

_UNLIMITED = 10_000


def render_run(
    run: Run,
    format: str = "table",
    console: Console | None = None,
    *,
    metrics: Sequence[str] = (),
    show_all: bool = False,
) -> None:
    """Write a run's tables to `console`, by default stdout. Raises `UsageError` for an unknown metric or format and
    `DataError` for a run without a finished sample."""
    report = build_report(run, metrics, show_all=show_all)
    console = console or data_console()
    if format == "table":
        print_report(report, console, pictures_for(run, report, console))
    elif format in _WRITERS:
        text = _WRITERS[format](report)
        console.file.write(text if text.endswith("\n") else f"{text}\n")
    else:
        raise UsageError(f"unknown format {format!r}", hint=f"one of {', '.join(FORMATS)}")


_WRITERS = {"md": markdown_report, "csv": csv_report, "json": json_report}


def data_console() -> Console:
    """rich on stdout: the terminal's width, or none at all in a pipe or a file, where nothing may be cut off."""
    from rich.console import Console

    class DataConsole(Console):
        def on_broken_pipe(self) -> None:
            """rich would end the process with exit code 1, which is an answer here; the command line knows better."""
            raise BrokenPipeError

    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")
    width = None if sys.stdout.isatty() else _UNLIMITED
    return DataConsole(file=sys.stdout, highlight=False, markup=False, width=width)
