"""Prefix-cache hit rate of a workload against the size of the cache, without an engine.

Requests are served one at a time, in the order of the workload, prompts whole. Under that protocol the hits are exactly
those of the engine (tests hold them to its counters); with many at once, blocks in use leave less room for cached ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvbench.analysis.hit_bounds import arc_hits, bound_hits, optimum_hits
from kvbench.analysis.hit_caches import lru_hits, scored_hits
from kvbench.analysis.hit_sequences import number_blocks

if TYPE_CHECKING:
    from kvbench.analysis.hit_sequences import Sequences
    from kvbench.workload.types import Workload

OPTIMUM, BOUND = "min", "bound"
POLICIES = ("lru", "fifo", "lfu", "lrc", "lrc-age", "priority", "arc", OPTIMUM)
_STEPS = 8


@dataclass(frozen=True, slots=True)
class HitRate:
    """One policy at one capacity; `bound` has no capacity and never evicts. Rates are shares of looked-up tokens."""

    block_size: int
    policy: str
    capacity_blocks: int | None
    capacity_tokens: int | None
    queries_tokens: int
    hit_tokens: int
    hit_rate: float
    rejected: int
    """Requests that the capacity could never hold"""


def hit_rates(
    workload: Workload,
    block_size: int,
    policies: Sequence[str] = POLICIES,
    capacities: Sequence[int] | None = None,
    *,
    lrc_alpha: float = 1.0,
    lrc_beta: float = 1.0,
) -> list[HitRate]:
    """Every policy at every capacity (blocks; a ladder without), and the bound."""
    sequences = number_blocks(workload.requests, block_size)
    bound = bound_hits(sequences)
    found = [_rate(sequences, BOUND, None, bound)]
    for capacity in capacities or ladder(sequences):
        plenty = capacity >= _most_blocks(sequences)
        for policy in policies:
            hits = bound if plenty else _hits(sequences, policy, capacity, lrc_alpha, lrc_beta)
            found.append(_rate(sequences, policy, capacity, hits))
    return found


def ladder(sequences: Sequences) -> list[int]:
    """Capacities from the longest request to all distinct blocks, each about the same multiple of the one before."""
    low, high = max(1, sequences.longest), max(1, sequences.distinct, sequences.longest)
    ratio = (high / low) ** (1 / (_STEPS - 1))
    return sorted({min(high, max(low, round(low * ratio**step))) for step in range(_STEPS)})


def _hits(sequences: Sequences, policy: str, capacity: int, alpha: float, beta: float) -> int:
    if policy == OPTIMUM:
        return optimum_hits(sequences, capacity)
    if policy == "arc":
        return arc_hits(sequences, capacity)
    if policy == "lru":
        return lru_hits(sequences, capacity)
    return scored_hits(sequences, capacity, policy, alpha, beta)


def _most_blocks(sequences: Sequences) -> int:
    """So many that nothing is ever evicted: as if no request shared a block."""
    return sum(asked.blocks for asked in sequences.requests)


def _rate(sequences: Sequences, policy: str, capacity: int | None, hits: int) -> HitRate:
    size = sequences.block_size
    served = [a for a in sequences.requests if capacity is None or a.blocks <= capacity]
    queries = sum(asked.input_tokens for asked in served)
    return HitRate(
        block_size=size,
        policy=policy,
        capacity_blocks=capacity,
        capacity_tokens=None if capacity is None else capacity * size,
        queries_tokens=queries,
        hit_tokens=hits * size,
        hit_rate=hits * size / queries if queries else 0.0,
        rejected=len(sequences.requests) - len(served),
    )
