"""Prefix hits by block size: the coarser the block, the more of a shared front lies in a block that is not whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from kvbench.workload.clipping import front
from kvbench.workload.sharing import PrefixTree, runs

if TYPE_CHECKING:
    from kvbench.analysis.advice.lengths import Ints, LengthSample
    from kvbench.workload.request import Request


@dataclass(frozen=True, slots=True)
class HitBound:
    """Most prefix hits at one block size: caches start cold, never evict, and share whole blocks only."""

    sharing: Literal["recorded", "synthetic"]
    """`synthetic` where the block is no multiple of the trace's own, which alone it says anything about"""
    hit_tokens: int
    hit_rate: float
    """Share of all prompt tokens"""
    lost_tokens: int
    """Tokens that blocks of one token would find beyond these"""
    lost_share: float
    """Of all prompt tokens: prefill that the block size costs"""


def hit_bound(sample: LengthSample, block_size: int) -> HitBound | None:
    """Hits of a block size, None where the source records no sharing; equal to the bound of `analysis.hits`.

    The last prompt token is always computed, so of I prompt tokens at most ⌊(I − 1) / B⌋ blocks are hits."""
    if sample.shared is None:
        return None
    front = np.minimum(sample.shared.tokens, sample.inputs - 1)
    prompt_tokens, best = int(sample.inputs.sum()), int(front.sum())
    found = int((front // block_size).sum()) * block_size
    return HitBound(
        sharing=sample.shared.label(block_size),
        hit_tokens=found,
        hit_rate=found / prompt_tokens,
        lost_tokens=best - found,
        lost_share=(best - found) / prompt_tokens,
    )


def shared_fronts(requests: Sequence[Request]) -> Ints:
    """`[n]` tokens at the front of each prompt that an earlier request had stored: its prompt and its forced output
    but for the last token."""
    tree = PrefixTree()
    shared = np.zeros(len(requests), dtype=np.int64)
    for number, request in enumerate(requests):
        shared[number] = tree.match(request.salt, runs(request.prompt))
        output = front(request.output or (), request.output_tokens - 1)
        tree.insert(request.salt, runs((*request.prompt, *output)))
    return shared
