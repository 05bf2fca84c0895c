"""Distributions of token counts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from kvbench.errors import UsageError
from kvbench.workload.draws import Floats, normals, uniforms

if TYPE_CHECKING:
    from kvbench.spec.workload import Lengths

MAX_TOKENS = 2**31 - 1
"""More tokens than this are nobody's request: positions are 32-bit."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """`tokens` `[n]` int64, and how many draws were moved up to the minimum or down to the maximum."""

    tokens: NDArray[np.int64]
    raised: int
    lowered: int


def draw_lengths(lengths: Lengths, seed: int, purpose: str, count: int) -> Drawn:
    """`count` lengths of at least 1 token; `purpose` ("input" or "output") keeps draws apart."""
    raw = _DRAWS[lengths.kind](lengths, seed, purpose, count)
    low, high = lengths.min or 1, min(lengths.max or MAX_TOKENS, MAX_TOKENS)
    raised, lowered = int(np.count_nonzero(raw < low)), int(np.count_nonzero(raw > high))
    return Drawn(np.clip(raw, low, high).astype(np.int64), raised, lowered)


def _constant(lengths: Lengths, seed: int, purpose: str, count: int) -> Floats:
    return np.full(count, float(lengths.value or 1))


def _uniform(lengths: Lengths, seed: int, purpose: str, count: int) -> Floats:
    low, high = lengths.low or 1, lengths.high or 1
    return np.asarray(np.floor(low + uniforms(seed, purpose, count) * (high - low + 1)))


def _lognormal(lengths: Lengths, seed: int, purpose: str, count: int) -> Floats:
    median, sigma = lengths.median or 1.0, lengths.sigma or 0.0
    with np.errstate(over="ignore"):
        return np.asarray(np.rint(np.exp(np.log(median) + sigma * normals(seed, purpose, count))))


def _zipf(lengths: Lengths, seed: int, purpose: str, count: int) -> Floats:
    low, high = lengths.low or 1, lengths.high or 1
    weights = np.arange(1, high - low + 2, dtype=np.float64) ** -(lengths.exponent or 0.0)
    return np.asarray(low + pick(weights, uniforms(seed, purpose, count)), dtype=np.float64)


def _empirical(lengths: Lengths, seed: int, purpose: str, count: int) -> Floats:
    values = np.array(lengths.values, dtype=np.float64)
    weights = np.array(lengths.weights if lengths.weights is not None else np.ones(len(values)), dtype=np.float64)
    return np.asarray(values[pick(weights, uniforms(seed, purpose, count))], dtype=np.float64)


def pick(weights: Floats, numbers: Floats) -> NDArray[np.int64]:
    """Index drawn by weight for every number in [0, 1); a weight of 0 is never drawn."""
    total = np.cumsum(weights)
    if not (np.all(np.isfinite(total)) and total[-1] > 0):
        raise UsageError(
            "weights must be finite numbers that add up to more than 0", hint="give at least one weight above 0"
        )
    found = np.searchsorted(total, numbers * total[-1], side="right")
    return np.asarray(np.minimum(found, int(np.flatnonzero(weights)[-1])), dtype=np.int64)


_DRAWS = {
    "constant": _constant,
    "uniform": _uniform,
    "lognormal": _lognormal,
    "zipf": _zipf,
    "empirical": _empirical,
}
