"""Two factors against each other: the main metric of every combination."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations
from statistics import median

from kvbench.report.cells import metric_cell, metric_label
from kvbench.report.html.contents import Contents, Kind
from kvbench.report.html.factors import Factor
from kvbench.report.html.figure import Cell, Figure, HeatMap, LeftOut, Table
from kvbench.tabulate import MISSING

TITLE = "Two axes together"
_LEVELS_MOST = 16
_COVERED = 0.5

Values = dict[tuple[int, int], list[float]]


def figure(contents: Contents, kind_name: str) -> Figure | LeftOut:
    """The two factors that change the main metric most, the one with more levels down."""
    kind = contents.kinds.get(kind_name)
    title = TITLE if kind_name == "engine" else f"{TITLE}, kernel"
    if kind is None:
        return LeftOut(title, f"no {kind_name} cases")
    if len(kind.factors) < 2:
        return LeftOut(title, f"fewer than two axes among the {kind_name} cases")
    pair = _pair(kind)
    if pair is None:
        return LeftOut(title, "no two axes of at most 16 values have most of their combinations")
    down, across = pair
    values = _values(kind, down, across)
    column = kind.primary
    others = len(kind.factors) > 2
    label = metric_label(column)
    best = "Higher is better" if column.better == "higher" else "Lower is better"
    return Figure(
        name=f"heat-{kind_name}",
        title=f"{title}: {down.label} and {across.label}",
        caption=f"{label}{', median over the other settings' if others else ''}. {best}; the brighter the higher.",
        alt=_alt(kind, down, across, values),
        plots=[_plot(kind, down, across, values)],
        tables=[_table(kind, down, across, values)],
    )


def _pair(kind: Kind) -> tuple[Factor, Factor] | None:
    """The pair of factors over whose levels the medians of the main metric span most; None when no pair will do."""
    fitting = [factor for factor in kind.factors if len(factor.levels) <= _LEVELS_MOST]
    weighed = []
    for at, (left, right) in enumerate(combinations(fitting, 2)):
        values = _values(kind, left, right)
        covered = len(values) / (len(left.levels) * len(right.levels))
        if covered >= _COVERED:
            weighed.append((_span(kind, left) + _span(kind, right), -at, left, right))
    if not weighed:
        return None
    _, _, left, right = max(weighed, key=lambda one: one[:2])
    return (left, right) if len(left.levels) >= len(right.levels) else (right, left)


def _values(kind: Kind, down: Factor, across: Factor) -> Values:
    found: Values = {}
    for line in kind.ran:
        value = line.value(kind.primary.name)
        if value is not None:
            found.setdefault((down.level_of[line.case_id], across.level_of[line.case_id]), []).append(value)
    return found


def _span(kind: Kind, factor: Factor) -> float:
    levels: dict[int, list[float]] = {}
    for line in kind.ran:
        value = line.value(kind.primary.name)
        if value is not None and value > 0:
            levels.setdefault(factor.level_of[line.case_id], []).append(value)
    middles = [median(values) for values in levels.values()]
    return math.log(max(middles) / min(middles)) if middles else 0.0


def _plot(kind: Kind, down: Factor, across: Factor, values: Values) -> HeatMap:
    middles = {key: median(found) for key, found in values.items()}
    low, high = min(middles.values()), max(middles.values())
    cells = []
    for (row, column), value in middles.items():
        text = metric_cell(value, kind.primary)
        shade = (value - low) / (high - low) if high > low else 0.5
        told = [(down.label, down.levels[row]), (across.label, across.levels[column])]
        told += [(metric_label(kind.primary), text), ("cases", str(len(values[row, column])))]
        cells.append(Cell(across.levels[column], down.levels[row], shade, text, told))
    title = f"{metric_label(kind.primary)}: {down.label} down, {across.label} across"
    return HeatMap(across.label, down.label, across.levels, down.levels, cells, title)


def _table(kind: Kind, down: Factor, across: Factor, values: Values) -> Table:
    heads = [f"{down.label} ↓ {across.label} →", *across.levels]
    rows = [
        [level, *(_text(kind, values.get((row, column))) for column in range(len(across.levels)))]
        for row, level in enumerate(down.levels)
    ]
    return Table(heads, rows, frozenset(range(1, len(heads))))


def _text(kind: Kind, values: Sequence[float] | None) -> str:
    return metric_cell(median(values), kind.primary) if values else MISSING


def _alt(kind: Kind, down: Factor, across: Factor, values: Values) -> str:
    middles = {key: median(found) for key, found in values.items()}
    low, high = min(middles, key=middles.__getitem__), max(middles, key=middles.__getitem__)
    ends = [
        f"{word} {metric_cell(middles[key], kind.primary)} at {down.levels[key[0]]}, {across.levels[key[1]]}"
        for word, key in (("lowest", low), ("highest", high))
    ]
    return f"{metric_label(kind.primary)} of {len(values)} combinations: {', '.join(ends)}."
