"""Which cached block loses its contents first. The pool's law holds under every policy: a block goes before the
block it continues (children before parents), so that what stays cached can always be reached from its first token.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Protocol

import numpy as np

from kvbench.cache.pool import CACHED

if TYPE_CHECKING:
    from kvbench.cache.pool import BlockPool
    from kvbench.cache.types import Int64s

EVICTION_POLICIES = {"lru": "kvbench.cache.eviction:LruLog", "fifo": "kvbench.cache.eviction:FifoHeap"}


class EvictionPolicy(Protocol):
    """Told what happens to blocks; asked for victims. Sequences release tail-first, in one call per sequence."""

    watches_contents: bool
    """Whether `published` must be called."""

    def add(self, blocks: Int64s) -> None:
        """These became cached, in this order."""
        ...

    def forget(self, blocks: Int64s) -> None:
        """These were hit: no longer cached."""
        ...

    def take(self, count: int) -> Int64s:
        """`count` victims in order, fewer only when there are no more; the caller removes them from the index."""
        ...

    def published(self, block: int, content: int, parent: int) -> None:
        """A block has entered the index."""
        ...

    def order(self) -> list[int]:
        """All cached blocks that could be named now, next victim first; for tests and invariants."""
        ...


class LruLog:
    """Least recently used first: a log of blocks in the order of their release.

    `place[block]` is the block's latest position; an entry whose block has moved on is dead and skipped when met.
    Tail-first release makes the order obey the law without looking at it: whoever holds a block holds a copy of its
    parent, and lets go of the parent later.
    """

    watches_contents = False

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
        found: list[Int64s] = []
        window = max(count, 64)
        while count and self._head < self._tail:
            end = min(self._head + window, self._tail)
            blocks = self._log[self._head : end]
            at = (self._place.take(blocks) == self._positions[self._head : end]).nonzero()[0][:count]
            found.append(blocks[at])
            count -= len(at)
            self._head = end if count else self._head + int(at[-1]) + 1
            window *= 2
        victims = np.concatenate(found) if len(found) != 1 else found[0]
        self._place[victims] = -1
        return victims

    def published(self, block: int, content: int, parent: int) -> None:
        """The order of release is all that counts here."""

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


class FifoHeap:
    """Oldest publication first, among blocks that nothing cached or used depends on: a lazy heap.

    A block may go when another copy of its content exists or no published content continues it. At most one heap
    entry per block; an entry that may not go when met is dropped and comes back when its last child is taken.
    """

    watches_contents = True

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self._heap: list[tuple[int, int]] = []
        self._queued: set[int] = set()
        self._known: dict[int, tuple[int, int, int]] = {}
        """Published block → (age, content id, parent's content id)"""
        self._copies: dict[int, list[int]] = {}
        self._children: dict[int, int] = {}
        self._clock = 0

    def add(self, blocks: Int64s) -> None:
        for block in blocks.tolist():
            self._push(block)

    def forget(self, blocks: Int64s) -> None:
        """Entries of blocks in use are skipped when met."""

    def take(self, count: int) -> Int64s:
        victims: list[int] = []
        while self._heap and len(victims) < count:
            _, block = heapq.heappop(self._heap)
            self._queued.discard(block)
            if self._may_go(block):
                victims.append(block)
                self._forget_content(block)
        return np.array(victims, dtype=np.int64)

    def published(self, block: int, content: int, parent: int) -> None:
        self._clock += 1
        self._known[block] = (self._clock, content, parent)
        copies = self._copies.setdefault(content, [])
        copies.append(block)
        if len(copies) == 1:
            self._children[parent] = self._children.get(parent, 0) + 1
        else:
            self._push_cached(copies)

    def order(self) -> list[int]:
        return [block for _, block in sorted(self._heap) if self._may_go(block)]

    def _forget_content(self, block: int) -> None:
        _, content, parent = self._known.pop(block)
        copies = self._copies[content]
        copies.remove(block)
        if copies:
            return
        del self._copies[content]
        self._children[parent] -= 1
        if not self._children[parent]:
            del self._children[parent]
            self._push_cached(self._copies.get(parent, []))

    def _may_go(self, block: int) -> bool:
        if self._pool.state[block] != CACHED:
            return False
        content = self._known[block][1]
        return content not in self._children or len(self._copies[content]) > 1

    def _push_cached(self, blocks: list[int]) -> None:
        for block in blocks:
            if self._pool.state[block] == CACHED:
                self._push(block)

    def _push(self, block: int) -> None:
        if block not in self._queued:
            self._queued.add(block)
            heapq.heappush(self._heap, (self._known[block][0], block))
