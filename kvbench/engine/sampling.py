"""Choosing the next token: greedy, or drawn with temperature, top-k and top-p.

A draw depends on its row of logits, its parameters and its key, and on nothing else in the batch. Importing this
file needs no torch, so that the scheduler can name `SamplingParams`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from kvbench.errors import InternalError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from torch import Tensor

_BUCKETS_PER_NAT = 64
_LAST_BUCKET = 4095


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

    Greedy rows stay on the device; rows that draw are copied to the host and drawn in float64, one by one.
    Raises `InternalError` when a row's largest logit is not a finite number.
    """
    if len(params) == 0:
        return np.empty(0, np.int64)
    chosen = likeliest_tokens(logits)
    drawn = [row for row, p in enumerate(params) if not p.is_greedy]
    if drawn:
        rows = logits[drawn].cpu().numpy()
        for row, values, uniform in zip(drawn, rows, uniforms(keys[drawn]), strict=True):
            chosen[row] = _draw(values, params[row], float(uniform))
    return chosen


def likeliest(logits: Tensor, rows: NDArray[np.int64], count: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Ids and log-probabilities `[len(rows), count]` of the likeliest tokens of these rows, likeliest first.

    Raises `InternalError` when a row's largest logit is not a finite number.
    """
    chosen = logits[rows.tolist()].float()
    likeliest_tokens(chosen)
    best = chosen.log_softmax(dim=-1).topk(count, dim=-1)
    return best.indices.cpu().numpy(), best.values.cpu().numpy().astype(np.float64)


def likeliest_tokens(logits: Tensor) -> NDArray[np.int64]:
    """Where each row is largest, the lowest id of equals. On a CPU numpy finds it 5 to 10 times as fast as torch."""
    if logits.device.type == "cpu":
        rows = logits.numpy()
        ids: NDArray[np.int64] = rows.argmax(axis=-1)
        largest = rows[np.arange(len(rows)), ids]
    else:
        best = logits.max(dim=-1)
        ids, largest = best.indices.cpu().numpy(), best.values.cpu().numpy()
    bad = np.flatnonzero(~np.isfinite(largest))
    if len(bad):
        raise InternalError(
            f"the model's logits are not finite in rows {bad[:8].tolist()} of {len(largest)}",
            hint='weights with NaN, or activations beyond the range of the weight dtype: try weight_dtype = "fp32"',
        )
    return ids


def _draw(logits: NDArray[np.float32], params: SamplingParams, uniform: float) -> int:
    """Inverse of the distribution function over the tokens that the cuts leave, in the order of their ids."""
    ids = np.arange(len(logits))
    if 0 < params.top_k < len(logits):
        ids = _largest(logits, params.top_k)
    with np.errstate(over="ignore"):
        depths = (float(logits.max()) - logits[ids].astype(np.float64)) / params.temperature
    masses = np.exp(-depths)
    if params.top_p < 1.0:
        kept = _nucleus(depths, masses, params.top_p)
        ids, masses = ids[kept], masses[kept]
    reached = masses.cumsum()
    target = min(uniform * reached[-1], np.nextafter(reached[-1], 0.0))
    return int(ids[np.searchsorted(reached, target, side="right")])


def _largest(values: NDArray[Any], count: int) -> NDArray[np.int64]:
    """Places of the `count` largest values, in ascending order; of equal values the first ones."""
    edge = np.partition(values, len(values) - count)[len(values) - count]
    is_kept = values > edge
    is_kept[np.flatnonzero(values == edge)[: count - int(is_kept.sum())]] = True
    return np.flatnonzero(is_kept)


def _nucleus(depths: NDArray[np.float64], masses: NDArray[np.float64], p: float) -> NDArray[np.int64]:
    """Places, in ascending order, of the likeliest tokens that it takes to reach the share `p`; mass = exp(−depth).

    Depths are sorted into buckets, and only the bucket in which the share is reached is sorted itself: a whole sort
    of 32,000 numbers takes milliseconds.
    """
    buckets = np.minimum(depths * _BUCKETS_PER_NAT, _LAST_BUCKET).astype(np.int64)
    reached = np.bincount(buckets, weights=masses).cumsum()
    wanted = p * reached[-1]
    edge = int(np.searchsorted(reached, wanted))
    inside = np.flatnonzero(buckets == edge)
    inside = inside[np.argsort(depths[inside], kind="stable")]
    before = reached[edge - 1] if edge else 0.0
    count = int(np.searchsorted(before + masses[inside].cumsum(), wanted)) + 1
    is_kept = buckets < edge
    is_kept[inside[:count]] = True
    return np.flatnonzero(is_kept)
