"""Choosing the next token: greedy, or drawn with temperature, top-k and top-p.

A draw depends on its row of logits, its parameters and its key, and on nothing else in the batch. Importing this
file needs no torch, so that the scheduler can name `SamplingParams`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kvbench.errors import InternalError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """`temperature` 0 is greedy; `top_k` 0 keeps all tokens; `top_p` 1 keeps all the mass.

    Order of the cuts: temperature, then the k likeliest, then the smallest set of likeliest tokens whose share of
    what the k left reaches p. Of equally likely tokens the lowest id comes first.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0

    def __post_init__(self) -> None:
        if not 0.0 <= self.temperature < float("inf"):
            raise UsageError(f"temperature {self.temperature} is not a number from 0 up", hint="0 is greedy")
        if self.top_k < 0:
            raise UsageError(f"top_k {self.top_k} is negative", hint="0 keeps all tokens")
        if not 0.0 < self.top_p <= 1.0:
            raise UsageError(f"top_p {self.top_p} is not in (0, 1]", hint="1 keeps all tokens")

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0.0 or self.top_k == 1


GREEDY = SamplingParams()


def uniforms(keys: NDArray[np.int64]) -> NDArray[np.float64]:
    """A number in [0, 1) per key, 53 bits: the finaliser of splitmix64 (Steele, Lea, Flood 2014) over a counter."""
    x = keys.astype(np.int64).view(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((x ^ (x >> np.uint64(31))) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def sample(logits: Tensor, params: Sequence[SamplingParams], keys: NDArray[np.int64]) -> NDArray[np.int64]:
    """Token ids `[n]` from `logits` `[n, vocab]`, row i by `params[i]` and `keys[i]`.

    Raises `InternalError` when a row's largest logit is not a finite number.
    """
    if len(params) == 0:
        return np.empty(0, np.int64)
    largest, likeliest = logits.max(dim=-1)
    _check_finite(largest)
    chosen: NDArray[np.int64] = likeliest.cpu().numpy()
    drawn = [row for row, p in enumerate(params) if not p.is_greedy]
    if drawn:
        chosen = chosen.copy()
        for row, uniform in zip(drawn, uniforms(keys[drawn]), strict=True):
            chosen[row] = _draw(logits[row], params[row], float(uniform))
    return chosen


def _check_finite(largest: Tensor) -> None:
    bad = (~largest.isfinite()).nonzero().flatten().tolist()
    if bad:
        raise InternalError(
            f"the model's logits are not finite in rows {bad[:8]} of {len(largest)}",
            hint='weights with NaN, or activations beyond the weight dtype\'s range: try weight_dtype = "fp32"',
        )


def _draw(logits: Tensor, params: SamplingParams, uniform: float) -> int:
    """Inverse of the distribution function, in float64, over the tokens that the cuts leave."""
    scaled = logits.double() / params.temperature
    ids = None
    if 0 < params.top_k < len(scaled):
        scaled, ids = _top_k(scaled, params.top_k)
    masses = scaled.softmax(dim=-1)
    if params.top_p < 1.0:
        masses, kept = _top_p(masses, params.top_p)
        ids = kept if ids is None else ids[kept]
    reached = masses.cumsum(dim=-1)
    place = int((reached <= uniform * reached[-1]).sum())
    place = min(place, len(masses) - 1)
    return place if ids is None else int(ids[place])


def _top_k(scaled: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest, largest first, ties by lowest id, and their ids."""
    candidates = (scaled >= scaled.topk(k).values[-1]).nonzero().flatten()
    values, order = scaled[candidates].sort(descending=True, stable=True)
    return values[:k], candidates[order[:k]]


def _top_p(masses: Tensor, p: float) -> tuple[Tensor, Tensor]:
    """The likeliest tokens up to mass `p`, the one that reaches it included, and their places.

    Tokens below (1 − p) / n weigh less than 1 − p together, so none of them is among the likeliest up to p.
    """
    candidates = (masses >= (1.0 - p) / len(masses)).nonzero().flatten()
    values, order = masses[candidates].sort(descending=True, stable=True)
    before = values.cumsum(dim=-1) - values
    count = int((before < p).sum())
    return values[:count], candidates[order[:count]]
