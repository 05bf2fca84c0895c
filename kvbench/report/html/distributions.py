"""How TTFT and the gaps between tokens are distributed, in the cases worth a look."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from kvbench.analysis.summary import LARGEST
from kvbench.measure.metrics import values_needed
from kvbench.measure.slo import FINISHED
from kvbench.report.html.contents import Contents
from kvbench.report.html.figure import Axis, Figure, LeftOut, Line, Lines, Mark, Table, exact, is_wide
from kvbench.tabulate import MISSING
from kvbench.units import format_count, format_seconds

if TYPE_CHECKING:
    import pyarrow as pa

TITLE = "TTFT and the gaps between tokens"
_SHARES = np.array([*np.arange(0.0, 0.98, 0.03), 0.99, 0.995, 0.999, 1.0])
_PERCENTILES = (10, 25, 50, 75, 90, 95, 99)
Floats = NDArray[np.float64]


def figure(contents: Contents) -> Figure | LeftOut:
    """Cumulative distributions, the samples of a case pooled."""
    kind = contents.engine
    shown = contents.shown_cases
    if kind is None or not shown:
        return LeftOut(TITLE, "no engine case ended ok")
    keys = [(line.case_id, n) for line in shown for n in contents.samples(line.case_id, kind.primary.name)]
    table = contents.run.of_samples("requests", keys, ("ttft_s", "itl_s", "finish_reason"))
    names = [kind.label(line) for line in shown]
    values = {name: _values(table, line.case_id) for name, line in zip(names, shown, strict=True)}
    ttft, gaps = ({name: found[at] for name, found in values.items() if len(found[at])} for at in (0, 1))
    if not ttft and not gaps:
        return LeftOut(TITLE, "the run keeps no finished requests of its engine cases")
    return Figure(
        name="latency",
        title=TITLE,
        caption=(
            "The height of a line at a time is the share of requests (or of gaps) that took no longer. TTFT counts "
            "from the scheduled arrival, queueing included; a gap is between two output tokens of one request."
            + _which(contents)
        ),
        alt=_alt(ttft, gaps),
        plots=[
            *([_plot(ttft, "TTFT", names, "requests")] if ttft else []),
            *([_plot(gaps, "gap between tokens (ITL)", names, "gaps")] if gaps else []),
        ],
        tables=[_table(ttft, gaps)],
        series=names,
    )


def _which(contents: Contents) -> str:
    kind = contents.engine
    if kind is None or len(kind.by_primary()) <= len(contents.shown_cases):
        return ""
    return " Shown: the highest throughput, others of the front, and the lowest throughput."


def _values(table: pa.Table, case_id: str) -> tuple[Floats, Floats]:
    """(TTFT, gaps) of the finished requests of a case, in seconds, sorted; what no clock gives is left out."""
    import pyarrow as pa
    import pyarrow.compute as pc

    mine = pc.and_(pc.equal(table["case_id"], case_id), pc.is_in(table["finish_reason"], pa.array(list(FINISHED))))
    rows = table.filter(mine)
    return _sorted(rows["ttft_s"]), _sorted(pc.list_flatten(rows["itl_s"]))


def _sorted(column: pa.ChunkedArray) -> Floats:
    found = np.asarray(column.to_numpy(zero_copy_only=False), dtype=np.float64)
    return np.sort(found[(found >= 0) & (found <= LARGEST)])


def _plot(found: dict[str, Floats], what: str, names: Sequence[str], unit: str) -> Lines:
    """`names` fixes the order of the styles; a case without values keeps its place with an empty line."""
    lines = [Line(name, _marks(found.get(name, np.empty(0)), what, unit)) for name in names]
    ends = [end for values in found.values() for end in (float(values[0]), float(values[-1]))]
    return Lines(
        Axis(what, "s", is_wide(ends, 10)), Axis(f"share of {unit}", "share"), lines, is_stepped=True, title=what
    )


def _marks(values: Floats, what: str, unit: str) -> list[Mark]:
    if not len(values):
        return []
    shares = _SHARES if len(values) > len(_SHARES) else np.arange(1, len(values) + 1) / len(values)
    times = np.quantile(values, shares, method="inverted_cdf")
    marks = []
    for share, time in zip(shares.tolist(), times.tolist(), strict=True):
        told = [(what, format_seconds(time)), (f"share of {unit}", f"{share:.1%}")]
        marks.append(Mark(time, exact(share), told))
    return marks


def _table(ttft: dict[str, Floats], gaps: dict[str, Floats]) -> Table:
    heads = ["case", "of", "values", *(f"p{p}" for p in _PERCENTILES), "largest"]
    rows = [
        [
            name,
            what,
            format_count(len(values)),
            *(_percentile(values, p) for p in _PERCENTILES),
            format_seconds(values[-1]),
        ]
        for what, found in (("TTFT", ttft), ("gaps", gaps))
        for name, values in found.items()
    ]
    return Table(heads, rows, frozenset(range(2, len(heads))))


def _percentile(values: Floats, percentile: int) -> str:
    """A percentile that the count supports, as in the metrics; else a dash."""
    if len(values) < values_needed(max(percentile, 100 - percentile)):
        return MISSING
    return format_seconds(float(np.percentile(values, percentile)))


def _alt(ttft: dict[str, Floats], gaps: dict[str, Floats]) -> str:
    parts = [
        f"{what} of {name}: median {format_seconds(float(np.median(values)))}, largest {format_seconds(values[-1])}"
        for what, found in (("TTFT", ttft), ("gaps", gaps))
        for name, values in found.items()
    ]
    return f"Cumulative distributions. {'; '.join(parts)}."
