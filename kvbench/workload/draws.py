"""Random numbers for building a workload, counted rather than drawn in turn.

Number i of a purpose depends on (seed, purpose, i) alone: 1,000 requests are the first 1,000 of 10,000, and neither
numpy's generators nor their version can change a workload.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvbench.workload.tokens import draw_stream, hash_words, stream_keys

Floats = NDArray[np.float64]

_PURPOSES = {"input": 0, "output": 1, "arrival": 2, "prefix": 3}


def uniforms(seed: int, purpose: str, count: int, part: int = 0) -> Floats:
    """`[count]` numbers in [0, 1); `part` (0 or 1) names one of two independent sets of a purpose."""
    stream = np.array([draw_stream(2 * _PURPOSES[purpose] + part)], dtype=np.uint64)
    words = hash_words(stream_keys(stream, seed), np.arange(count, dtype=np.uint64))
    return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53


def normals(seed: int, purpose: str, count: int) -> Floats:
    """`[count]` standard normal numbers (Box and Muller 1958)."""
    radius = np.sqrt(-2.0 * np.log1p(-uniforms(seed, purpose, count)))
    angle = 2.0 * np.pi * uniforms(seed, purpose, count, part=1)
    return np.asarray(radius * np.cos(angle), dtype=np.float64)
