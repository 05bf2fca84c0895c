"""What one setting does while the others stay: the change of a metric, paired over other settings and samples."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from kvbench.analysis.gate.statistics import paired

TAIL = 0.025
_MOST = 36.0
"""Of a logarithm, either way: beyond it 1 + change is 0 or 1 is lost in it."""

Samples = Mapping[int, float]


class Effect(NamedTuple):
    """Relative change of the geometric mean; 0.1 is ten per cent more. NaN where it cannot be said."""

    change: float
    low: float
    """Lower end of the 95 % interval over the samples (paired t on logarithms); NaN below two samples"""
    high: float
    smallest: float
    """The smallest change under any of the other settings"""
    largest: float
    settings: int
    """Other settings under which both levels were measured"""
    samples: int
    """Samples that every one of these pairs has"""

    @property
    def is_clear(self) -> bool:
        """Whether the interval leaves out 0."""
        return self.low > 0 or self.high < 0


def effect(pairs: Sequence[tuple[Samples, Samples]]) -> Effect | None:
    """The change from left to right over pairs of cases that differ in one setting; each side maps sample → value.

    A sample's number says in which round, and so beside what, it was measured: both sides of a pair are compared
    within their round, rounds are the replicates. Values that are not positive have no ratio and are left out; None
    when no pair has a round in common.
    """
    ratios = [found for left, right in pairs if (found := _log_ratios(left, right))]
    if not ratios:
        return None
    means = [sum(found.values()) / len(found) for found in ratios]
    rounds = sorted(set(ratios[0]).intersection(*ratios[1:]))
    theta, low, high = _interval([sum(found[n] for found in ratios) / len(ratios) for n in rounds])
    if not rounds:
        theta = sum(means) / len(means)
    return Effect(
        change=_change(theta),
        low=_change(low),
        high=_change(high),
        smallest=_change(min(means)),
        largest=_change(max(means)),
        settings=len(ratios),
        samples=len(rounds),
    )


def _interval(values: Sequence[float]) -> tuple[float, float, float]:
    if len(values) < 2:
        return (values[0] if values else math.nan), math.nan, math.nan
    found = paired(np.array([values], dtype=np.float64))
    return float(found.theta[0]), float(found.lower(TAIL)[0]), float(found.upper(TAIL)[0])


def _log_ratios(left: Samples, right: Samples) -> dict[int, float]:
    return {
        number: math.log(right[number]) - math.log(left[number])
        for number in left.keys() & right.keys()
        if left[number] > 0 and right[number] > 0
    }


def _change(logarithm: float) -> float:
    return math.expm1(max(-_MOST, min(logarithm, _MOST))) if not math.isnan(logarithm) else math.nan
