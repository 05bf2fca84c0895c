"""Whether timings fall into two groups: two clocks, two memory layouts, two code paths. Torch-free.

The best split of the sorted values into two (Otsu 1979) explains a share of their variance: 64 % for a normal
distribution, 75 % for a uniform one, nearly all for two narrow groups. A median over two groups jumps from one to the
other between runs, so a reader must know.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

LEAST_VALUES = 20
EXPLAINED = 0.85
LEAST_SHARE = 0.1
LEAST_DISTANCE = 0.03
_TRIMMED = 0.025
"""Of the values, at either end: single interruptions are no group."""


class TwoModes(NamedTuple):
    """Means of the two groups and the share of values in the upper one."""

    low: float
    high: float
    high_share: float


def two_modes(values: ArrayLike) -> TwoModes | None:
    """The two groups, each with 10 % of the values or more and 3 % of the lower mean apart; None where there is one."""
    x = np.sort(np.asarray(values, dtype=np.float64))
    x = x[int(len(x) * _TRIMMED) : len(x) - int(len(x) * _TRIMMED)]
    n = len(x)
    if n < LEAST_VALUES or not np.isfinite(x).all() or x[0] == x[-1]:
        return None
    counts = np.arange(1, n)
    sums = np.cumsum(x)
    low, high = sums[:-1] / counts, (sums[-1] - sums[:-1]) / (n - counts)
    between = counts * (n - counts) * (high - low) ** 2 / n
    at = int(np.argmax(between))
    explained = float(between[at]) / float(((x - x.mean()) ** 2).sum())
    found = TwoModes(float(low[at]), float(high[at]), float((n - counts[at]) / n))
    apart = found.high - found.low >= LEAST_DISTANCE * abs(found.low)
    big_enough = min(found.high_share, 1 - found.high_share) >= LEAST_SHARE
    return found if explained >= EXPLAINED and apart and big_enough else None
