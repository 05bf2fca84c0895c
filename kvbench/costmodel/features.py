"""What a step does, in numbers that its cost follows from. All of them are whole, so that adding them up in another
order changes nothing.

Of a sequence with n query tokens that ends at length e, a layer that sees W tokens (all of them without a window):

    context   KV tokens that its queries read between them       min(e, W + n − 1)
    pairs     (query, key) products                              Σ over its queries at p of min(p + 1, W)
    blocks    block-table entries that are followed              ⌈e / B⌉ − ⌊(e − context) / B⌋
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class StepFeatures:
    """One step. The lists have an entry per attention shape (distinct window) of the model."""

    sequences: int
    tokens: int
    """Query tokens: prefill and decode."""
    sampled: int
    """Rows that go through the output head."""
    decode_context: tuple[int, ...]
    prefill_context: tuple[int, ...]
    prefill_pairs: tuple[int, ...]
    blocks: tuple[int, ...]


def step_features(
    starts: NDArray[np.integer],
    counts: NDArray[np.integer],
    num_decodes: int,
    sampled: int,
    windows: tuple[int | None, ...],
    block_size: int,
) -> StepFeatures:
    """Features of a step over sequences whose `counts` query tokens begin at `starts`; the first `num_decodes` of them
    decode."""
    counts64, ends = counts.astype(np.int64), starts.astype(np.int64) + counts
    context = [visible(ends, counts64, window) for window in windows]
    return StepFeatures(
        sequences=len(ends),
        tokens=int(counts64.sum()),
        sampled=sampled,
        decode_context=tuple(int(seen[:num_decodes].sum()) for seen in context),
        prefill_context=tuple(int(seen[num_decodes:].sum()) for seen in context),
        prefill_pairs=tuple(_pairs(ends[num_decodes:], counts64[num_decodes:], window) for window in windows),
        blocks=tuple(int(blocks_of(ends, seen, block_size).sum()) for seen in context),
    )


def visible(ends: NDArray[np.int64], counts: NDArray[np.int64] | int, window: int | None) -> NDArray[np.int64]:
    """KV tokens that the last `counts` queries of sequences of length `ends` read between them."""
    return ends if window is None else np.minimum(ends, counts + (window - 1))


def blocks_of(ends: NDArray[np.int64], context: NDArray[np.int64], block_size: int) -> NDArray[np.int64]:
    """Block-table entries behind the last `context` tokens of sequences of length `ends`."""
    return -(-ends // block_size) - (ends - context) // block_size


def _pairs(ends: NDArray[np.int64], counts: NDArray[np.int64], window: int | None) -> int:
    """Causal pairs in closed form: all of them, less what lies behind the window."""
    starts = ends - counts
    total = _triangle(ends) - _triangle(starts)
    if window is not None:
        total = total - _triangle(np.maximum(ends - window, 0)) + _triangle(np.maximum(starts - window, 0))
    return int(total.sum())


def _triangle(n: NDArray[np.int64]) -> NDArray[np.int64]:
    """1 + 2 + … + n."""
    return n * (n + 1) // 2
