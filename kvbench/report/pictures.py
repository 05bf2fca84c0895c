"""Pictures beside the numbers of a table on a terminal: a bar of the main metric, KV memory held over time.

They are for a person at a terminal and nobody else: not in a pipe or a file, not in Markdown, CSV or JSON. Where the
terminal is narrow they go before any of the main metrics does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from kvbench.errors import DataError
from kvbench.report.sparks import Ink, bar, ink_for, over_time, sparkline

if TYPE_CHECKING:
    from rich.console import Console

    from kvbench.report.build import CaseTable, Report
    from kvbench.store.run import Run

BAR_WIDTH, SPARK_WIDTH = 8, 14
_STEP = ("t_s", "duration_s", "kv_bytes_used", "kv_capacity_bytes")


class Column(NamedTuple):
    """A picture beside the numbers: its head, the metric it follows (None: it comes last), a cell for every case."""

    head: str
    after: str | None
    cells: dict[str, str]
    meaning: str


@dataclass(slots=True)
class Pictures:
    """Kind of case → its columns of pictures. `note` says why some are missing."""

    columns: dict[str, list[Column]]
    note: str = ""


def pictures_for(run: Run, report: Report, console: Console) -> Pictures | None:
    """None where no person looks at a terminal."""
    if not console.is_terminal or console.is_dumb_terminal:
        return None
    ink = ink_for(getattr(console.file, "encoding", None) or console.encoding)
    pictures = Pictures({table.kind: list(_bars(table, ink)) for table in report.tables})
    if "engine" in pictures.columns:
        try:
            pictures.columns["engine"] += _held(run, ink)
        except DataError as error:
            pictures.note = f"no picture of KV held: {error.message}"
    return pictures


def _bars(table: CaseTable, ink: Ink) -> Iterator[Column]:
    """Of the table's first metric."""
    if not table.metrics or len(table.lines) < 2:
        return
    name = table.metrics[0].name
    values = {line.case_id: line.value(name) for line in table.lines}
    top = max((value for value in values.values() if value is not None), default=0.0)
    cells = {case_id: bar(value, top, BAR_WIDTH, ink) for case_id, value in values.items()}
    if any(cells.values()):
        yield Column("of most", name, cells, "of most: as a share of the column's largest value")


def _held(run: Run, ink: Ink) -> Iterator[Column]:
    """Share of the pool that live sequences hold, from none to all of it."""
    cells = {}
    for case_id, steps in run.first_steps(_STEP).items():
        size = np.where(steps["kv_capacity_bytes"] > 0, steps["kv_capacity_bytes"], np.nan)
        means = over_time(steps["t_s"], steps["duration_s"], steps["kv_bytes_used"] / size, SPARK_WIDTH)
        cells[case_id] = sparkline(means, 1.0, ink)
    if any(cell.strip() for cell in cells.values()):
        yield Column("KV held", None, cells, "KV held: share of the pool over the time of the first sample, 0 to 100 %")
