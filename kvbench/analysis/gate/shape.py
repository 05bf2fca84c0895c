"""Do the processes of one side fall into two groups?"""

from __future__ import annotations

import numpy as np

from kvbench.analysis.gate.types import Floats

LEAST_VALUES = 8
_LEAST_SHARE = 0.2
"""A group holds at least this share of the values, and two of them: less is an outlier."""
_SHARES = {8: 0.040, 10: 0.066, 12: 0.087, 16: 0.120, 20: 0.145, 24: 0.163, 32: 0.188, 48: 0.222, 96: 0.263}
"""Values → the share of the variance within the best two groups that normal noise falls below once in 400 times."""


def mode_distance(values: Floats) -> Floats:
    """Distance between the two groups of the last axis [..., R] (logarithms), 0 where there is one group.

    The split of the sorted values that leaves the least variance within is the best two-means clustering; it counts
    where it leaves less than normal noise would once in 400 times.
    """
    size = values.shape[-1]
    if size < LEAST_VALUES:
        return np.zeros(values.shape[:-1])
    ranked = np.sort(values - values.mean(axis=-1, keepdims=True), axis=-1)
    within, distance = _best_split(ranked)
    total = (ranked**2).sum(axis=-1)
    return np.where(within < limit(size) * total, distance, 0.0)


def limit(size: int) -> float:
    """The share of variance within two groups that is no accident of `size` normal values."""
    return float(np.interp(size, list(_SHARES), list(_SHARES.values())))


def _best_split(ranked: Floats) -> tuple[Floats, Floats]:
    """Sum of squares within the best two groups, and the distance of their means; `ranked` is sorted and centred."""
    size = ranked.shape[-1]
    least = max(2, int(np.ceil(_LEAST_SHARE * size)))
    counts = np.arange(least, size - least + 1)
    sums = np.cumsum(ranked, axis=-1)[..., counts - 1]
    low, high = sums / counts, -sums / (size - counts)
    between = counts * low**2 + (size - counts) * high**2
    best = between.argmax(axis=-1)[..., None]
    within = (ranked**2).sum(axis=-1) - np.take_along_axis(between, best, axis=-1)[..., 0]
    return np.maximum(within, 0.0), np.take_along_axis(high - low, best, axis=-1)[..., 0]
