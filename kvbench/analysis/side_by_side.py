"""Runs side by side on the cases that they share: medians, and the change against the first with its interval.

The change is a ratio of geometric means; its interval is Welch's t on the logarithms of the samples, for stored runs
were not taken in pairs. Nothing is called better or worse that its interval does not show.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from kvbench.analysis.sides import Side, metrics_of_case
from kvbench.analysis.student import quantile
from kvbench.store.case_columns import METRICS

BETTER, WORSE, UNCLEAR, SAME, NO_INTERVAL = "better", "worse", "unclear", "same", "no interval"
LEVEL = 0.95


class Cell(NamedTuple):
    """One run's values of a metric: NaN and 0 samples where it has none."""

    median: float
    low: float
    high: float
    samples: int


class Change(NamedTuple):
    """Relative change against the first run; NaN where it cannot be said."""

    change: float
    low: float
    high: float
    word: str


@dataclass(frozen=True, slots=True)
class Line:
    """One metric of one case over all runs; `changes[i]` is of run i + 1 against run 0."""

    case_id: str
    label: str
    metric: str
    cells: tuple[Cell, ...]
    changes: tuple[Change, ...]


@dataclass(frozen=True, slots=True)
class SharedCase:
    """A case by its id in every run; None where a run lacks it."""

    ids: tuple[str | None, ...]
    kind: str
    label: str


def side_by_side(
    cases: Sequence[SharedCase], sides: Sequence[Side], metrics: Sequence[str] = (), *, is_exact: bool = False
) -> list[Line]:
    """One line per case and metric. `is_exact`: by the virtual clock nothing varies, and one sample tells all."""
    lines = []
    for case in cases:
        have = [(side, case_id) for side, case_id in zip(sides, case.ids, strict=True) if case_id is not None]
        names = metrics_of_case(case.kind, metrics, [side for side, _ in have], [case_id for _, case_id in have])
        lines += [_line(case, metric, sides, is_exact) for metric in names]
    return lines


def _line(case: SharedCase, metric: str, sides: Sequence[Side], is_exact: bool) -> Line:
    values = [
        _known(side, case_id, metric) if case_id is not None else np.zeros(0)
        for side, case_id in zip(sides, case.ids, strict=True)
    ]
    first = next(case_id for case_id in case.ids if case_id is not None)
    changes = tuple(change(values[0], other, METRICS[metric].better, is_exact=is_exact) for other in values[1:])
    return Line(first, case.label, metric, tuple(map(_cell, values)), changes)


def change(left: np.ndarray, right: np.ndarray, better: str = "", *, is_exact: bool = False) -> Change:
    """Relative change of the geometric mean from `left` to `right`, with its 95 % interval.

    Values that are zero or negative have no ratio. One sample has no interval, and then there is no word but that."""
    nan = math.nan
    if not left.size or not right.size:
        return Change(nan, nan, nan, "")
    if (left <= 0).any() or (right <= 0).any():
        return Change(nan, nan, nan, SAME if np.array_equal(np.unique(left), np.unique(right)) else "")
    a, b = np.log(left), np.log(right)
    theta = float(b.mean() - a.mean())
    if is_exact:
        return Change(_ratio(theta), _ratio(theta), _ratio(theta), _word(theta, theta, better))
    if min(a.size, b.size) < 2:
        return Change(_ratio(theta), nan, nan, NO_INTERVAL)
    half = _half_width(a, b)
    word = _word(theta - half, theta + half, better)
    return Change(_ratio(theta), _ratio(theta - half), _ratio(theta + half), word)


def _ratio(logarithm: float) -> float:
    """exp() − 1, which beyond 700 would overflow."""
    return math.expm1(min(logarithm, 700.0))


def _half_width(a: np.ndarray, b: np.ndarray) -> float:
    """Half of Welch's interval (Welch 1947) of the difference of two means."""
    parts = a.var(ddof=1) / a.size, b.var(ddof=1) / b.size
    total = sum(parts)
    if total <= 1e-28:
        return 0.0
    df = total**2 / sum(part**2 / (values.size - 1) for part, values in zip(parts, (a, b), strict=True))
    return float(quantile(0.5 + LEVEL / 2, df)) * math.sqrt(total)


def _word(low: float, high: float, better: str) -> str:
    if low == high == 0.0:
        return SAME
    if low <= 0.0 <= high:
        return UNCLEAR
    if not better:
        return "higher" if low > 0 else "lower"
    return BETTER if (low > 0) == (better == "higher") else WORSE


def _known(side: Side, case_id: str, metric: str) -> np.ndarray:
    values = np.array(list(side.values(case_id, metric).values()), dtype=np.float64)
    return values[np.isfinite(values)]


def _cell(values: np.ndarray) -> Cell:
    if not values.size:
        return Cell(math.nan, math.nan, math.nan, 0)
    return Cell(float(np.median(values)), float(values.min()), float(values.max()), int(values.size))
