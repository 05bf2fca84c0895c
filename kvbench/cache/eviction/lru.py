"""Least recently used first, by vector operations: the default, and the hot path."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from kvbench.cache.eviction.policy import EvictionPolicy
    from kvbench.cache.pool import BlockPool
    from kvbench.cache.types import CacheSettings, Int64s


def make_lru(settings: CacheSettings, pool: BlockPool) -> EvictionPolicy:
    """One log; with window groups a second one beside it."""
    if any(group.window is not None for group in settings.groups):
        from kvbench.cache.eviction.outside import LruWithOutside

        return LruWithOutside(pool)
    return LruLog(pool)


class LruLog:
    """Least recently used first: a log of blocks in the order of their release.

    `place[block]` is the block's latest position; an entry whose block has moved on is dead and skipped when met.
    Tail-first release makes the order obey the law without looking at it: whoever holds a block holds a copy of its
    parent, and lets go of the parent later.
    """

    watches_contents = False
    watches_priority = False

    def __init__(self, pool: BlockPool) -> None:
        self._place = np.full(pool.num_blocks + 1, -1, dtype=np.int64)
        self._log = np.zeros(2 * pool.num_blocks + 64, dtype=np.int64)
        self._positions = np.arange(len(self._log), dtype=np.int64)
        self._head = 0
        self._tail = 0

    def add(self, blocks: Int64s) -> None:
        if self._tail + len(blocks) > len(self._log):
            self._compact()
        end = self._tail + len(blocks)
        self._log[self._tail : end] = blocks
        self._place[blocks] = self._positions[self._tail : end]
        self._tail = end

    def forget(self, blocks: Int64s) -> None:
        self._place[blocks] = -1

    def take(self, count: int) -> Int64s:
        victims, self._head = self._next(count)
        self._place[victims] = -1
        return victims

    def peek(self, count: int) -> Int64s:
        """What `take` would return now."""
        return self._next(count)[0]

    def _next(self, count: int) -> tuple[Int64s, int]:
        """The next `count` victims and the position behind the last of them."""
        found: list[Int64s] = []
        window, head = max(count, 64), self._head
        while count and head < self._tail:
            end = min(head + window, self._tail)
            blocks = self._log[head:end]
            at = (self._place.take(blocks) == self._positions[head:end]).nonzero()[0][:count]
            found.append(blocks[at])
            count -= len(at)
            head = end if count else head + int(at[-1]) + 1
            window *= 2
        return (np.concatenate(found) if len(found) != 1 else found[0]), head

    def published(self, block: int, content: int, parent: int) -> None:
        """The order of release is all that counts here."""

    def used_by(self, priority: int, blocks: Int64s) -> None:
        """Nor does priority."""

    def order(self) -> list[int]:
        order: list[int] = self._living().tolist()
        return order

    def _living(self) -> Int64s:
        blocks = self._log[self._head : self._tail]
        living: Int64s = blocks[self._place.take(blocks) == self._positions[self._head : self._tail]]
        return living

    def _compact(self) -> None:
        """Drop dead entries. The log is twice the pool, so this happens at most once per pool-many releases."""
        living = self._living()
        self._log[: len(living)] = living
        self._place[living] = self._positions[: len(living)]
        self._head, self._tail = 0, len(living)
