"""Intervals of predictions by a fitted cost model, for `kvbench fit` and `kvbench recommend` alike (docs/fit.md).

What is known are errors of step times, made on cases that are alike: *scores*. Half of an interval is conformal in them
(`analysis/conformal.py`), times by how many per cent the metric changes when step times change by one (its
*sensitivity*), times by how much less is known outside the domain of the fit (`measure/domain.py`).

How far two candidates of a recommendation differ is not read off these intervals, nor is it conformal
(`analysis/advice/candidates.py`): there the errors of the two on one workload are subtracted, so that what they share
is gone, and their mean is taken off. A conformal interval of 95 % needs 19 workloads, and runs have fewer; of those,
Student's t is the sharper statement.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvbench.analysis.conformal import half_width
from kvbench.costmodel.fitted import LEAST_SENSITIVITY

LEVEL = 0.90
SLOWER = 1.05
"""How much step times are changed to see what follows from them."""
_LARGEST = 20.0
"""No interval is wider than by exp of this: beyond it nothing is known."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A predicted value with its 90 % interval; without an interval where nothing is known about errors.

    `sensitivity`: by how many per cent the value changes when all step times change by one; 1 unless it was looked
    for."""

    value: float
    low: float | None = None
    high: float | None = None
    sensitivity: float = 1.0

    def covers(self, measured: float) -> bool:
        return self.low is not None and self.high is not None and self.low <= measured <= self.high


def follows_steps_alone(arrival: Mapping[str, Any], sessions: Mapping[str, Any] | None = None) -> bool:
    """Whether time in steps is the only clock, so that every metric changes as step times do."""
    if (sessions or {}).get("turns", 1) != 1:
        return False
    kind = arrival.get("kind")
    return kind == "all-at-once" or (kind == "closed-loop" and not arrival.get("think_time_s"))


def sensitivity_of(value: float, when_slower: float | None) -> float:
    """From the value with steps `SLOWER` as long; 1 where that is not known."""
    if not when_slower or value <= 0:
        return 1.0
    return abs(math.log(when_slower / value)) / math.log(SLOWER)


def interval_of(
    value: float,
    scores: Sequence[float],
    *,
    groups: int | None = None,
    sensitivity: float = 1.0,
    factor: float = 1.0,
) -> Interval:
    """The value with its interval. `groups`: scores come in so many groups that err together. `factor`: by how much it
    is wider for lying outside the domain."""
    half = half_width(scores, LEVEL, groups)
    if half is None or value <= 0:
        return Interval(value, sensitivity=sensitivity)
    wide = math.exp(min(half * max(sensitivity, LEAST_SENSITIVITY) * factor, _LARGEST))
    return Interval(value, value / wide, value * wide, sensitivity)
