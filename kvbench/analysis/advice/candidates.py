"""What a decision is about: settings with their numbers, and how far two of them differ on the same requests."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvbench.analysis.student import quantile

Floats = NDArray[np.float64]
LEVEL = 0.95
"""Of the intervals of differences."""
TRIFLE = 0.001
"""A smaller difference decides nothing, however sure it is"""


class Range(NamedTuple):
    """A number with its interval; both ends are the value where nothing is known about its error."""

    value: float
    low: float
    high: float

    @property
    def is_finite(self) -> bool:
        return all(map(math.isfinite, self))

    def scaled(self, by: float) -> Range:
        return Range(self.value * by, self.low * by, self.high * by)


@dataclass(frozen=True, slots=True)
class Candidate:
    """One setting of the axes, with what is measured or predicted of it."""

    label: str
    settings: Mapping[str, Any]
    """Axis → value"""
    tokens_per_s: Range | None
    """Output tokens per second, None where the candidate cannot serve at all"""
    ttft_s: Range | None = None
    tpot_s: Range | None = None
    refusal: str | None = None
    """Why it may not be recommended, whatever its numbers"""
    notes: tuple[str, ...] = field(default=())
    precision_lost: float = 0.0
    """By its KV dtype, in one measure for all candidates: 0 for nothing, infinite where it was not measured"""

    @property
    def is_open(self) -> bool:
        """Whether it may be recommended."""
        return self.refusal is None and self.tokens_per_s is not None and self.tokens_per_s.is_finite


@dataclass(frozen=True, slots=True)
class Gaps:
    """Natural logarithms of throughput against throughput on the same requests: `value[a, b]` is ln(a / b),
    `half[a, b]` the half-width of its interval. Both `[n, n]`; NaN where one of the two has no number."""

    value: Floats
    half: Floats

    def between(self, a: int, b: int) -> Range:
        """How much more candidate `a` does than `b`, as a share of b: 0.03 is 3 % more."""
        value, half = float(self.value[a, b]), float(self.half[a, b])
        return Range(math.expm1(value), math.expm1(value - half), math.expm1(value + half))

    def can_tell(self, a: int, b: int) -> bool:
        """Whether the interval of the difference leaves 0 out, and there is one to speak of."""
        return bool(abs(self.value[a, b]) > max(float(self.half[a, b]), TRIFLE))


def gaps_of_rounds(rounds: Floats) -> Gaps:
    """Gaps of measured candidates: `rounds` `[rounds, n]` is the throughput of each in each round, NaN where it has
    none; candidates are paired within a round (t interval of the mean of the logarithms' differences)."""
    logs = np.log(rounds)
    differences = logs[:, :, np.newaxis] - logs[:, np.newaxis, :]
    return _gaps(differences, further=False)


def gaps_of_predictions(
    predicted: Sequence[float], errors: Floats, floor: float, workloads: Sequence[str] | None = None
) -> Gaps:
    """Gaps of predicted candidates.

    `predicted` `[n]` are the model's throughputs. `errors` `[groups, n]` is ln(measured / predicted) of the same
    candidates on other workloads, NaN where that was not measured: what the model gets wrong about a against b there
    is taken off here, and how much that varies between workloads is the interval, of one further workload. Groups of
    one of the `workloads` `[groups]` (each its own without them) count as one, by their mean. `floor` is the half-width
    where fewer than two workloads have both.
    """
    logs = np.log(np.asarray(predicted, dtype=np.float64))
    differences = errors[:, :, np.newaxis] - errors[:, np.newaxis, :]
    if workloads is not None and len(errors):
        differences = _by_workload(differences, workloads)
    found = _gaps(differences, further=True)
    known = np.isfinite(found.value)
    value = logs[:, np.newaxis] - logs[np.newaxis, :] + np.where(known, found.value, 0.0)
    half = np.where(np.isfinite(found.half), found.half, floor)
    np.fill_diagonal(half, 0.0)
    return Gaps(value, np.where(np.isfinite(value), half, np.nan))


def _by_workload(differences: Floats, workloads: Sequence[str]) -> Floats:
    """`[workloads, n, n]` means over the groups of each workload that have both, NaN where none has."""
    labels = np.array(workloads)
    found = []
    for one in dict.fromkeys(workloads):
        own = differences[labels == one]
        is_there = np.isfinite(own)
        count = is_there.sum(axis=0)
        found.append(np.where(count > 0, np.where(is_there, own, 0.0).sum(axis=0) / np.maximum(count, 1), np.nan))
    return np.stack(found)


def pooled_half(rounds: Floats) -> float:
    """Half-width of the difference of any two candidates' means, from what is left of the logarithms of `rounds`
    `[rounds, n]` when the means of rows and of columns are taken off: one spread for all, so that two rounds do."""
    logs = np.log(rounds[:, np.isfinite(rounds).all(axis=0)])
    count, n = logs.shape
    freedom = (count - 1) * (n - 1)
    if freedom < 1:
        return 0.0
    rest = logs - logs.mean(axis=0) - logs.mean(axis=1, keepdims=True) + logs.mean()
    spread = math.sqrt(float((rest**2).sum()) / freedom)
    return float(quantile(0.5 + LEVEL / 2, freedom)) * spread * math.sqrt(2.0 / count)


def _gaps(differences: Floats, *, further: bool) -> Gaps:
    """Mean and half-width over the first axis; `further`: of one more value instead of the mean."""
    is_there = np.isfinite(differences)
    count = is_there.sum(axis=0)
    filled = np.where(is_there, differences, 0.0)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = np.where(count > 0, filled.sum(axis=0) / count, np.nan)
        spread = np.where(is_there, differences - mean, 0.0)
        variance = (spread**2).sum(axis=0) / (count - 1)
        share = 1.0 / count + (1.0 if further else 0.0)
        half = np.where(count > 1, _t(count) * np.sqrt(variance * share), np.nan if further else np.inf)
    np.fill_diagonal(half, 0.0)
    return Gaps(mean, half)


def _t(count: NDArray[np.int64]) -> Floats:
    """Student's quantile for so many values; NaN where none has two."""
    if int(count.max(initial=0)) < 2:
        return np.full(count.shape, np.nan)
    return quantile(0.5 + LEVEL / 2, np.maximum(count - 1, 1))
