"""The policies that are a key: of the blocks that may go, the one with the least key goes.

Counting *cached descendants + lifetime hits* as a block's references, as `lrc` and `lrc-age` do: what may go has no
cached descendants that would go with it (the law), so what is left to count are the hits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvbench.cache.eviction.leaves import LeafHeap

if TYPE_CHECKING:
    from kvbench.cache.eviction.leaves import Facts
    from kvbench.cache.pool import BlockPool
    from kvbench.cache.types import CacheSettings


def make_fifo(settings: CacheSettings, pool: BlockPool) -> LeafHeap:
    """Oldest publication first."""
    return LeafHeap(pool, lambda facts, block: facts.published[block])


def make_lfu(settings: CacheSettings, pool: BlockPool) -> LeafHeap:
    """Fewest hits first, then least recently used."""

    def key(facts: Facts, block: int) -> tuple[int, int]:
        return facts.hits[facts.content[block]], facts.used[block]

    return LeafHeap(pool, key)


def make_lrc(settings: CacheSettings, pool: BlockPool) -> LeafHeap:
    """Fewest references first, then the deepest, since fewer prompts can reach it, then least recently used."""

    def key(facts: Facts, block: int) -> tuple[int, int, int]:
        content = facts.content[block]
        return facts.hits[content], -facts.depth[content], facts.used[block]

    return LeafHeap(pool, key)


def make_lrc_age(settings: CacheSettings, pool: BlockPool) -> LeafHeap:
    """Largest α · (max − references) + β · age first, the age counted in sequences released since the block was used.

    Maximum and clock are the same for all blocks, so this is the least α · references + β · (time of last use).
    """
    alpha, beta = settings.lrc_alpha, settings.lrc_beta

    def key(facts: Facts, block: int) -> tuple[float, int]:
        return alpha * facts.hits[facts.content[block]] + beta * facts.round[block], facts.used[block]

    return LeafHeap(pool, key)


def make_priority(settings: CacheSettings, pool: BlockPool) -> LeafHeap:
    """Lowest priority first, that of the most important request that used the contents; then least recently used."""

    def key(facts: Facts, block: int) -> tuple[int, int]:
        return facts.priority[facts.content[block]], facts.used[block]

    return LeafHeap(pool, key, watches_priority=True)
