"""Metrics of engine cases against a number: median and range of the cases that share it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from statistics import median

from kvbench.report.build import CaseLine
from kvbench.report.cells import metric_cell, metric_label
from kvbench.report.html.contents import spread_of
from kvbench.report.html.figure import Line, Mark, Range
from kvbench.store.case_columns import METRICS

Groups = dict[str, list[CaseLine]]


def grouped(lines: Iterable[CaseLine], key: Callable[[CaseLine], str | None]) -> Groups:
    """Cases by a text; cases without one are left out."""
    found: Groups = {}
    for line in lines:
        name = key(line)
        if name is not None:
            found.setdefault(name, []).append(line)
    return found


def middle(lines: Sequence[CaseLine], metric: str) -> Range | None:
    """Median over the cases, and the lowest and highest of all their samples."""
    spreads = [spread for line in lines if (spread := spread_of(line, metric)) is not None]
    if not spreads:
        return None
    return Range(median(s.value for s in spreads), min(s.low for s in spreads), max(s.high for s in spreads))


def metric_line(groups: Groups, metric: str, what: str, name: str | None = None) -> Line:
    """One line over the groups: a metric where a group has it. `what` is the name of the x value."""
    column = METRICS[metric]
    marks = []
    for x, lines in groups.items():
        found = middle(lines, metric)
        if found is not None:
            told = [(what, x), (metric_label(column), range_text(found, metric))]
            marks.append(Mark(x, found, told + ([("cases", str(len(lines)))] if len(lines) > 1 else [])))
    return Line(name or metric_label(column), marks)


def range_text(found: Range | None, metric: str) -> str:
    """Median, and the range where there is one."""
    column = METRICS[metric]
    text = metric_cell(None if found is None else found.value, column)
    if found is None or found.low == found.high:
        return text
    return f"{text} ({metric_cell(found.low, column)} to {metric_cell(found.high, column)})"
