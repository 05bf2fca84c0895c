"""How well a series of timings knows its median, autocorrelation counted; when that is well enough. Torch-free.

The interval is that of order statistics: below the median lie half of the values, give or take z·√(τ/4n), where τ is
the integrated autocorrelation time of the series "value ≤ median". It needs no density, and a few huge values (an
interrupt) move neither it nor the median. τ is Geyer's initial positive sequence (1992).

Sampling stops on precision, never on a comparison: a rule that looks at the difference until it is significant is
wrong three times as often as it says.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Z95 = 1.959964
MIN_CALLS = 20
MAX_CALLS = 20_000
_LOOK_AGAIN = 1.2
"""Growth of the series between two looks: the cost of looking stays linear, and few looks keep the error rate."""


@dataclass(frozen=True, slots=True)
class StoppingRule:
    """Stop between `min_time_s` and `max_time_s` when the interval's half-width is `precision` of the median."""

    precision: float
    min_time_s: float
    max_time_s: float

    def is_over(self, times: ArrayLike, elapsed_s: float) -> bool:
        count = len(np.atleast_1d(np.asarray(times)))
        if count < MIN_CALLS:
            return False
        if count >= MAX_CALLS or elapsed_s >= self.max_time_s:
            return True
        return elapsed_s >= self.min_time_s and half_width(times) <= self.precision

    def next_look(self, count: int) -> int:
        """How many values there must be before it is worth asking again."""
        return max(MIN_CALLS, int(count * _LOOK_AGAIN) + 1)


def median_interval(values: ArrayLike) -> tuple[float, float]:
    """95 % interval of the median; infinite where the effective number of values is too small for one."""
    x = np.sort(np.asarray(values, dtype=np.float64))
    n = len(x)
    if n < 2:
        return -np.inf, np.inf
    below = (np.asarray(values, dtype=np.float64) <= x[(n - 1) // 2]).astype(np.float64)
    reach = Z95 * 0.5 * np.sqrt(n * correlation_time(below))
    low, high = int(np.floor(n / 2 - reach)) - 1, int(np.ceil(n / 2 + reach))
    return (float(x[low]) if low >= 0 else -np.inf), (float(x[high]) if high < n else np.inf)


def half_width(values: ArrayLike) -> float:
    """Half the interval's width over the median."""
    low, high = median_interval(values)
    middle = float(np.median(np.asarray(values, dtype=np.float64)))
    return (high - low) / 2 / middle if middle > 0 else float("inf")


def correlation_time(values: NDArray[np.float64]) -> float:
    """τ = 1 + 2·Σρ, at least 1: so many values of the series are worth one independent value."""
    n = len(values)
    centred = values - values.mean()
    power = float(centred @ centred)
    if n < 4 or power == 0.0:
        return 1.0
    size = 1 << (2 * n - 1).bit_length()
    spectrum = np.fft.rfft(centred, size)
    rho = np.fft.irfft(spectrum * spectrum.conj(), size)[:n] / power
    pairs = rho[: n // 2 * 2].reshape(-1, 2).sum(axis=1)
    ends = np.flatnonzero(pairs <= 0)
    kept = pairs[: ends[0]] if len(ends) else pairs
    kept = np.minimum.accumulate(kept)
    return max(1.0, 2.0 * float(kept.sum()) - 1.0)
