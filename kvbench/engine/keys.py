"""Random numbers by name: a stable 64-bit hash of (seed, request, sample, output index), the same in every batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


def mix(value: int) -> int:
    """The finaliser of splitmix64 (Steele, Lea, Flood 2014) on one integer, taken modulo 2^64."""
    value = (value + _GOLDEN) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def request_key(seed: int, request_id: int, sample: int = 0) -> int:
    """What all keys of one sample of a request start from."""
    key = mix(mix(seed) ^ (request_id & _MASK))
    return key if sample == 0 else mix(key ^ mix(sample))


def token_keys(request_keys: NDArray[np.uint64], output_indices: NDArray[np.int64]) -> NDArray[np.int64]:
    """`mix(request key + index)` for each token, as int64[n]."""
    value = request_keys + output_indices.astype(np.uint64) + np.uint64(_GOLDEN)
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (value ^ (value >> np.uint64(31))).view(np.int64)
