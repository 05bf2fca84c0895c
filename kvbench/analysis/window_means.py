"""Means over windows of text with intervals. Tokens of a window depend on each other, so the window is the unit: an
interval is that of Student's t over window means, and there is none where windows cannot say how much they differ."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvbench.analysis.student import quantile

CONFIDENCE = 0.95
LARGEST_EXPONENT = 709.0
FIRST_EDGE = 32
"""First tokens with a bucket of their own; every further bucket ends at twice the position."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value and its interval; None where fewer than two windows, or windows that are all alike, give none."""

    value: float
    low: float | None = None
    high: float | None = None

    @property
    def half_width(self) -> float | None:
        return None if self.low is None or self.high is None else (self.high - self.low) / 2

    @property
    def is_symmetric(self) -> bool:
        """Whether value ± half width says the same as the interval, to a twentieth."""
        if self.low is None or self.high is None:
            return True
        return abs((self.high - self.value) - (self.value - self.low)) <= 0.1 * (self.high - self.low)


def mean_over_windows(values: NDArray[Any], least: float = -np.inf, most: float = np.inf) -> Estimate:
    """Mean of window means `[windows]`, and mean ± t · s / √windows, no wider than what is possible."""
    count = len(values)
    mean, spread = float(values.mean()), float(values.std(ddof=1)) if count > 1 else 0.0
    if spread == 0.0:
        return Estimate(mean)
    half = float(quantile(0.5 + CONFIDENCE / 2, count - 1)) * spread / count**0.5
    return Estimate(mean, max(least, mean - half), min(most, mean + half))


def exponential(estimate: Estimate, offset: float = 0.0) -> Estimate:
    """exp of an estimate and of the ends of its interval, plus `offset`; no larger than float64 can hold."""
    ends = (None if end is None else _exp(end) + offset for end in (estimate.low, estimate.high))
    return Estimate(_exp(estimate.value) + offset, *ends)


def _exp(x: float) -> float:
    return float(np.exp(min(x, LARGEST_EXPONENT)))


def is_no_worse(values: NDArray[Any], best: NDArray[Any]) -> bool:
    """Whether windows cannot tell `values` from `best`, smaller being better: the interval of the paired differences
    reaches 0."""
    difference = mean_over_windows(values - best)
    return difference.value <= 0 or (difference.low is not None and difference.low <= 0)


def position_edges(first: int, end: int) -> list[tuple[int, int]]:
    """Buckets [a, b) that cover the positions [first, end): up to `FIRST_EDGE`, then doubling."""
    edges = [first]
    edge = FIRST_EDGE
    while edge < end:
        if edge > first:
            edges.append(edge)
        edge *= 2
    return list(zip(edges, [*edges[1:], end], strict=True))
