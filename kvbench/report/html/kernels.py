"""Kernel cases: the time of one call and the bytes it moves per second against what was varied."""

from __future__ import annotations

from collections.abc import Sequence

from kvbench.report.build import CaseLine
from kvbench.report.cells import metric_cell, metric_label
from kvbench.report.headlines import DERIVED
from kvbench.report.html.contents import Contents, Kind, range_cell, spread_of, words
from kvbench.report.html.factors import Factor, series
from kvbench.report.html.figure import SERIES_MOST, Axis, Figure, LeftOut, Line, Lines, Mark, Range, Table, axis_of
from kvbench.store.case_columns import METRICS

TITLE = "Kernel time"
_METRICS = ("decode_s", "bytes_per_s")


def figure(contents: Contents) -> Figure | LeftOut:
    """One plot per metric: x is the factor with most levels, lines are the others' combinations."""
    kind = contents.kernel
    if kind is None:
        return LeftOut(TITLE, "no kernel cases")
    if not kind.factors:
        return LeftOut(TITLE, "nothing was varied among the kernel cases; the table of cases has the time")
    metrics = [name for name in _METRICS if any(line.value(name) is not None for line in kind.ran)]
    if not metrics:
        return LeftOut(TITLE, "no kernel case ended ok")
    across = max(kind.factors, key=lambda factor: (factor.numbers is not None, len(factor.levels)))
    lines = series(kind.ran, kind.factors, [across])
    names = sorted(lines, key=lambda name: -len(lines[name]))[:SERIES_MOST]
    shown = [name for name in lines if name in names]
    more = f" {len(lines) - len(shown)} more lines are in the table." if len(lines) > len(shown) else ""
    return Figure(
        name="kernel",
        title=TITLE,
        caption=(
            "One call of the kernel, median; whiskers span the samples. Bytes are K, V, scales, queries and outputs."
            + more
        ),
        alt=_alt(kind),
        plots=[_plot(kind, across, lines, shown, name) for name in metrics],
        tables=[_table(kind, [*metrics, *(["copy_share"] if _has_copy(kind) else [])])],
        series=shown,
    )


def _plot(kind: Kind, across: Factor, cases: dict[str, list[CaseLine]], shown: Sequence[str], metric: str) -> Lines:
    order, title, scale = _order(across), metric_label(METRICS[metric]), 1
    if METRICS[metric].unit == "B/s":
        title, scale = "GiB/s", 2**30
    lines = []
    for name in shown:
        marks = {}
        for line in cases[name]:
            found = spread_of(line, metric)
            if found is not None:
                level = across.level_of[line.case_id]
                told = words(line, kind.label(line), _METRICS)
                marks[level] = Mark(across.levels[level], Range(*(end / scale for end in found)), told)
        lines.append(Line(name, [marks[level] for level in order if level in marks]))
    values = [end for line in lines for mark in line.marks for end in mark.y]
    y = axis_of(METRICS[metric], title, values)
    return Lines(Axis(across.label), y, lines, [across.levels[level] for level in order], title=title)


def _order(factor: Factor) -> list[int]:
    places = list(range(len(factor.levels)))
    numbers = factor.numbers
    return places if numbers is None else sorted(places, key=lambda place: numbers[place])


def _has_copy(kind: Kind) -> bool:
    return any(line.value("copy_share") is not None for line in kind.ran)


def _table(kind: Kind, metrics: Sequence[str]) -> Table:
    columns = [METRICS.get(name) or DERIVED[name] for name in metrics]
    rows = [
        [kind.label(line), *(range_cell(line, c.name) if c.name in METRICS else metric_cell(line.value(c.name), c)
                             for c in columns)]
        for line in kind.ran
    ]  # fmt: skip
    return Table(["case", *map(metric_label, columns)], rows, frozenset(range(1, len(columns) + 1)))


def _alt(kind: Kind) -> str:
    ranked = kind.by_primary()
    if not ranked:
        return "No kernel case has a time."
    ends = [f"{word} {range_cell(line, 'decode_s')} ({kind.label(line)})" for word, line in
            (("fastest", ranked[0]), ("slowest", ranked[-1]))]  # fmt: skip
    return f"Time of one call in {len(ranked)} kernel cases: {', '.join(ends)}."
