"""Prefix hit rate against the capacity of the pool."""

from __future__ import annotations

from collections.abc import Sequence

from kvbench.report.build import CaseLine
from kvbench.report.cells import metric_cell, metric_label
from kvbench.report.html.contents import Contents, Kind, spread_of, words
from kvbench.report.html.factors import Factor, other_settings, series
from kvbench.report.html.figure import ROWS_MOST, SERIES_MOST, Axis, Figure, LeftOut, Line, Lines, Mark, Table, is_wide
from kvbench.report.html.grouped import range_text
from kvbench.store.case_columns import METRICS

TITLE = "Hit rate against capacity"
_CAPACITY, _HITS = "kv_capacity_tokens", "prefix_hit_rate"


def figure(contents: Contents) -> Figure | LeftOut:
    """One line for each combination of the settings that do not decide the capacity."""
    kind = contents.engine
    if kind is None:
        return LeftOut(TITLE, "no engine cases")
    known = [line for line in kind.ran if line.value(_HITS) is not None and line.value(_CAPACITY) is not None]
    if not known:
        return LeftOut(TITLE, "no case looked a prefix up")
    capacities = {line.value(_CAPACITY) for line in known}
    if len(capacities) < 2:
        return LeftOut(TITLE, f"every case has the same pool ({_capacity_cell(known[0])} tokens)")
    lines = [_line(kind, name, found) for name, found in _series(kind, known).items()]
    kept = sorted(lines, key=lambda line: -len(line.marks))[:SERIES_MOST]
    shown = [line for line in lines if line in kept]
    more = f" {len(lines) - len(shown)} more lines are in the table." if len(lines) > len(shown) else ""
    rest = f" The table has {ROWS_MOST} cases, that of all cases the others." if len(known) > ROWS_MOST else ""
    xs = [float(mark.x) for line in shown for mark in line.marks]
    plot = Lines(Axis("pool, tokens", "", is_wide(xs, 4)), Axis("prefix hit rate", "share"), shown)
    return Figure(
        name="hit-rate",
        title=TITLE,
        caption="Prompt tokens found over those looked up, first admissions only. Whiskers span the samples."
        + more
        + rest,
        alt=_alt(known),
        plots=[plot],
        tables=[_table(kind, known)],
        series=[line.name for line in shown],
    )


def _capacity_cell(line: CaseLine) -> str:
    return metric_cell(line.value(_CAPACITY), METRICS[_CAPACITY])


def _series(kind: Kind, lines: Sequence[CaseLine]) -> dict[str, list[CaseLine]]:
    """Cases by the levels of the factors that leave the capacity as it is, each by its capacity."""
    deciding = [factor for factor in kind.factors if _decides(kind, factor, lines)]
    return series(sorted(lines, key=lambda line: line.value(_CAPACITY) or 0), kind.factors, deciding)


def _decides(kind: Kind, factor: Factor, lines: Sequence[CaseLine]) -> bool:
    groups: dict[tuple[int, ...], set[float | None]] = {}
    for line in lines:
        groups.setdefault(other_settings(line.case_id, kind.factors, [factor]), set()).add(line.value(_CAPACITY))
    return any(len(values) > 1 for values in groups.values())


def _line(kind: Kind, name: str, lines: Sequence[CaseLine]) -> Line:
    marks = []
    for line in lines:
        x, y = spread_of(line, _CAPACITY), spread_of(line, _HITS)
        if x is not None and y is not None:
            marks.append(Mark(x.value, y, words(line, kind.label(line), (_CAPACITY, _HITS))))
    return Line(name, marks)


def _table(kind: Kind, lines: Sequence[CaseLine]) -> Table:
    heads = ["case", metric_label(METRICS[_CAPACITY]), metric_label(METRICS[_HITS])]
    rows = [
        [kind.label(line), _capacity_cell(line), range_text(spread_of(line, _HITS), _HITS)]
        for line in lines[:ROWS_MOST]
    ]
    return Table(heads, rows, frozenset((1, 2)))


def _alt(lines: Sequence[CaseLine]) -> str:
    low, high = min(lines, key=lambda one: one.value(_HITS) or 0), max(lines, key=lambda one: one.value(_HITS) or 0)
    ends = [f"{metric_cell(one.value(_HITS), METRICS[_HITS])} with {_capacity_cell(one)} tokens" for one in (low, high)]
    return f"Hit rates of {len(lines)} cases, from {ends[0]} to {ends[1]}."
