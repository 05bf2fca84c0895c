"""KV occupancy and batch size over the time of a sample, from its steps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from kvbench.analysis.summary import LARGEST
from kvbench.report.html.contents import Contents
from kvbench.report.html.figure import Axis, Band, Bucket, Figure, LeftOut, Table
from kvbench.units import format_count, format_seconds

if TYPE_CHECKING:
    import pyarrow as pa

TITLE = "KV occupancy and batch size over time"
BUCKETS = 40
_CASES = 3
_HEADS = ("from", "to", "KV occupancy, lowest", "highest", "batch size, lowest", "highest", "waiting, highest")
_COLUMNS = ("t_s", "duration_s", "kv_bytes_used", "kv_capacity_bytes", "batch_size", "waiting_sequences")
Floats = NDArray[np.float64]


def figure(contents: Contents) -> Figure | LeftOut:
    """Two bands for each of few cases: their first sample, lowest and highest value of every bucket of steps."""
    kind = contents.engine
    if kind is None:
        return LeftOut(TITLE, "no engine cases")
    shown = contents.shown_cases
    chosen = [*shown[: _CASES - 1], shown[-1]] if len(shown) > _CASES else shown
    keys = {line.case_id: n for line in chosen if (n := contents.first_sample(line.case_id)) is not None}
    table = contents.run.of_samples("steps", list(keys.items()), _COLUMNS)
    plots: list[Band] = []
    tables: list[Table] = []
    for line in chosen:
        steps = _Steps.of(table, line.case_id)
        if steps is not None:
            plots += steps.plots(kind.label(line))
            tables.append(Table(_HEADS, steps.rows(), frozenset(range(len(_HEADS))), kind.label(line)))
    if not plots:
        return LeftOut(TITLE, "the run keeps no steps of its engine cases")
    return Figure(
        name="over-time",
        title=TITLE,
        caption=(
            "The first sample of each case. Occupancy is what live sequences hold of the pool; cached blocks that "
            f"nobody holds are not in it. Steps are put together into at most {BUCKETS} spans of time; a band reaches "
            "from the lowest to the highest value of each, so that no peak is lost."
        ),
        alt=f"KV occupancy and batch size over the first sample of {'; '.join(table.title for table in tables)}.",
        plots=plots,
        tables=tables,
    )


class _Steps:
    """The steps of one sample, in buckets."""

    def __init__(self, time: Floats, end: float, used: Floats, batch: Floats, waiting: Floats) -> None:
        self._bounds = bounds(time, end)
        self._ends = (*(float(time[low]) for low, _ in self._bounds[1:]), end)
        self._starts = tuple(float(time[low]) for low, _ in self._bounds)
        self._used, self._batch, self._waiting = used, batch, waiting

    @classmethod
    def of(cls, table: pa.Table, case_id: str) -> _Steps | None:
        import pyarrow.compute as pc

        rows = table.filter(pc.equal(table["case_id"], case_id)).sort_by("t_s")
        found = {name: np.asarray(rows[name].to_numpy(zero_copy_only=False), dtype=np.float64) for name in _COLUMNS}
        good = found["kv_capacity_bytes"] > 0
        for values in found.values():
            good &= (values >= 0) & (values <= LARGEST)
        if not good.any():
            return None
        time, duration, used, capacity, batch, waiting = (found[name][good] for name in _COLUMNS)
        return cls(time, float(time[-1] + duration[-1]), used / capacity, batch, waiting)

    def plots(self, label: str) -> Iterator[Band]:
        x = Axis("time", "s")
        yield Band(x, Axis("KV occupancy", "share"), self._buckets(self._used), 1.0, label)
        yield Band(x, Axis("batch size"), self._buckets(self._batch), None, label)

    def rows(self) -> list[list[str]]:
        used, batch, waiting = map(self._buckets, (self._used, self._batch, self._waiting))
        return [
            [*map(format_seconds, (u.start, u.end)), f"{u.low:.1%}", f"{u.high:.1%}",
             *map(format_count, (b.low, b.high, w.high))]
            for u, b, w in zip(used, batch, waiting, strict=True)
        ]  # fmt: skip

    def _buckets(self, values: Floats) -> list[Bucket]:
        return [
            Bucket(start, end, float(np.nanmin(values[low:high])), float(np.nanmax(values[low:high])))
            for (low, high), start, end in zip(self._bounds, self._starts, self._ends, strict=True)
        ]


def bounds(time: Floats, end: float, most: int = BUCKETS) -> list[tuple[int, int]]:
    """Half-open index ranges of the sorted `time`, at most `most`, each of one equal span that holds a step."""
    if len(time) <= most:
        return [(n, n + 1) for n in range(len(time))]
    edges = np.linspace(float(time[0]), end, most + 1)[1:-1]
    cuts = np.unique(np.concatenate(([0], np.searchsorted(time, edges), [len(time)])))
    return list(zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True))
