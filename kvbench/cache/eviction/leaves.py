"""Victims by a key, among blocks that nothing published depends on: a lazy heap.

A block may go when another copy of its content exists or no published content continues it. It comes into the heap when
it may go: on its release, with its content's next copy, or when the last block that continues it is taken; one that may
not go any more is dropped when it is met. There is at most one entry per block. Keys never fall while a block is
published, so an entry may be too low but never too high: it goes back with the key of the day. So an operation costs
O(log n) whatever the policy, and whoever is taken has the least key.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Any

import numpy as np

from kvbench.cache.pool import CACHED

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvbench.cache.pool import BlockPool
    from kvbench.cache.types import Int64s


class Facts:
    """What a key may be made of. Blocks are published, used, released; hits and priority belong to the content, which
    its copies share, and end with the last copy."""

    def __init__(self) -> None:
        self.content: dict[int, int] = {}
        """Published block → content id"""
        self.parent: dict[int, int] = {}
        """Content id → its parent's; negative for a root"""
        self.published: dict[int, int] = {}
        """Block → when it was published, counted in publications"""
        self.used: dict[int, int] = {}
        """Block → when it was released last, counted in released blocks"""
        self.round: dict[int, int] = {}
        """Block → when it was released last, counted in releases of sequences"""
        self.hits: dict[int, int] = {}
        """Content id → sequences that found it"""
        self.depth: dict[int, int] = {}
        """Content id → blocks before it"""
        self.priority: dict[int, int] = {}
        """Content id → highest priority of a request that used it"""


class LeafHeap:
    """Least key first. `key` takes the facts and a block; keys of different blocks differ."""

    watches_contents = True

    def __init__(self, pool: BlockPool, key: Callable[[Facts, int], Any], *, watches_priority: bool = False) -> None:
        self.watches_priority = watches_priority
        self.facts = Facts()
        self._pool = pool
        self._key = key
        self._heap: list[tuple[Any, int]] = []
        self._queued: set[int] = set()
        self._copies: dict[int, list[int]] = {}
        self._children: dict[int, int] = {}
        self._publications = 0
        self._released = 0
        self._rounds = 0
        self._coming: dict[int, int] = {}
        """Priority of blocks about to be published"""

    def add(self, blocks: Int64s) -> None:
        facts = self.facts
        self._rounds += 1
        for block in blocks.tolist():
            self._released += 1
            facts.used[block] = self._released
            facts.round[block] = self._rounds
            if self._may_go(block):
                self._push(block)

    def forget(self, blocks: Int64s) -> None:
        """A hit each. Entries of blocks in use are skipped when met."""
        content, hits = self.facts.content, self.facts.hits
        for block in blocks.tolist():
            hits[content[block]] += 1

    def take(self, count: int) -> Int64s:
        victims: list[int] = []
        while self._heap and len(victims) < count:
            key, block = heapq.heappop(self._heap)
            self._queued.discard(block)
            if not self._may_go(block):
                continue
            if self._key(self.facts, block) != key:
                self._push(block)
                continue
            victims.append(block)
            self._forget_block(block)
        return np.array(victims, dtype=np.int64)

    def published(self, block: int, content: int, parent: int) -> None:
        facts = self.facts
        self._publications += 1
        facts.content[block] = content
        facts.published[block] = self._publications
        facts.used[block] = facts.round[block] = 0
        priority = self._coming.pop(block, 0)
        copies = self._copies.setdefault(content, [])
        copies.append(block)
        if len(copies) == 1:
            facts.parent[content] = parent
            facts.depth[content] = facts.depth[parent] + 1 if parent > 0 else 0
            facts.hits[content] = 0
            facts.priority[content] = priority
            self._children[parent] = self._children.get(parent, 0) + 1
        else:
            facts.priority[content] = max(facts.priority[content], priority)
            self._push_cached(copies)

    def used_by(self, priority: int, blocks: Int64s) -> None:
        facts = self.facts
        for block in blocks.tolist():
            content = facts.content.get(block)
            if content is None:
                self._coming[block] = priority
            else:
                facts.priority[content] = max(facts.priority[content], priority)

    def order(self) -> list[int]:
        ready = [block for _, block in self._heap if self._may_go(block)]
        return sorted(ready, key=lambda block: self._key(self.facts, block))

    def _forget_block(self, block: int) -> None:
        facts = self.facts
        content = facts.content.pop(block)
        del facts.published[block], facts.used[block], facts.round[block]
        copies = self._copies[content]
        copies.remove(block)
        if not copies:
            self._forget_content(content)

    def _forget_content(self, content: int) -> None:
        facts = self.facts
        del self._copies[content], facts.hits[content], facts.depth[content], facts.priority[content]
        parent = facts.parent.pop(content)
        self._children[parent] -= 1
        if not self._children[parent]:
            del self._children[parent]
            self._push_cached(self._copies.get(parent, []))

    def _may_go(self, block: int) -> bool:
        if self._pool.state[block] != CACHED:
            return False
        content = self.facts.content[block]
        return content not in self._children or len(self._copies[content]) > 1

    def _push_cached(self, blocks: list[int]) -> None:
        for block in blocks:
            if self._may_go(block):
                self._push(block)

    def _push(self, block: int) -> None:
        if block not in self._queued:
            self._queued.add(block)
            heapq.heappush(self._heap, (self._key(self.facts, block), block))
