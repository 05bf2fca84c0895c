"""Random numbers for building a workload, counted rather than drawn in turn.

Number i of a purpose depends on (seed, purpose, i) alone: 1,000 requests are the first 1,000 of 10,000, and neither
numpy's generators nor their version can change a workload.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvbench.workload.tokens import UInt64s, draw_stream, hash_words, stream_keys

Floats = NDArray[np.float64]

_PURPOSES = {
    "input": 0, "output": 1, "arrival": 2, "prefix": 3, "think": 4, "tenant": 5, "shots": 6, "document": 7,
    "arrival try": 8, "arrival tilt": 9, "priority": 10,
}  # fmt: skip
_ATTEMPT = 1 << 40
_ATTEMPTS = 64
"""A gamma draw is accepted with a chance above 0.95 each time: 64 refusals in a row have a chance below 1e-83."""


def uniforms(seed: int, purpose: str, count: int, part: int = 0) -> Floats:
    """`[count]` numbers in [0, 1); `part` (0 or 1) names one of two independent sets of a purpose."""
    return _uniforms_at(seed, purpose, np.arange(count, dtype=np.uint64), part)


def _uniforms_at(seed: int, purpose: str, positions: UInt64s, part: int = 0) -> Floats:
    stream = np.array([draw_stream(2 * _PURPOSES[purpose] + part)], dtype=np.uint64)
    words = hash_words(stream_keys(stream, seed), positions)
    return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53


def normals(seed: int, purpose: str, count: int) -> Floats:
    """`[count]` standard normal numbers (Box and Muller 1958)."""
    return _normals_at(seed, purpose, np.arange(count, dtype=np.uint64))


def exponentials(seed: int, purpose: str, count: int) -> Floats:
    """`[count]` exponential numbers of mean 1."""
    return np.asarray(-np.log1p(-uniforms(seed, purpose, count)))


def gammas(seed: int, shape: float, count: int) -> Floats:
    """`[count]` gamma numbers of that shape and mean 1 (Marsaglia and Tsang 2000), for arrivals."""
    d = max(shape, shape + 1.0 if shape < 1.0 else 0.0) - 1.0 / 3.0
    drawn, left = np.zeros(count), np.arange(count, dtype=np.uint64)
    for attempt in range(_ATTEMPTS):
        at = left + np.uint64(attempt * _ATTEMPT)
        x, u = _normals_at(seed, "arrival", at), _uniforms_at(seed, "arrival try", at)
        v = (1.0 + x / np.sqrt(9.0 * d)) ** 3
        inside = np.maximum(v, 1e-300)
        is_taken = (v > 0) & (np.log1p(-u) < 0.5 * x * x + d - d * inside + d * np.log(inside))
        drawn[left[is_taken].astype(np.int64)] = d * inside[is_taken]
        left = left[~is_taken]
        if not len(left):
            break
    if shape < 1.0:
        drawn *= (1.0 - uniforms(seed, "arrival tilt", count)) ** (1.0 / shape)
    return np.asarray(drawn / shape)


def _normals_at(seed: int, purpose: str, positions: UInt64s) -> Floats:
    radius = np.sqrt(-2.0 * np.log1p(-_uniforms_at(seed, purpose, positions)))
    angle = 2.0 * np.pi * _uniforms_at(seed, purpose, positions, part=1)
    return np.asarray(radius * np.cos(angle), dtype=np.float64)
