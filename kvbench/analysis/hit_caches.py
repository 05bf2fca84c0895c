"""A pool of blocks under one stream of requests, one at a time, as the paged manager treats them.

A request finds the longest front of its prompt's blocks, holds those hits, takes blocks for the rest (evicting where
none is free), publishes each when it is full, and releases everything tail first. A block whose content has a block
already is a further copy of it, with a place of its own.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvbench.analysis.hit_sequences import Asked, Sequences

Key = Callable[["ScoredPool", int], Any]


def lru_hits(sequences: Sequences, capacity: int) -> int:
    """Hit blocks under least recently used."""
    first: dict[int, int] = {}
    spare: dict[int, list[int]] = {}
    content_of: dict[int, int] = {}
    cached: OrderedDict[int, None] = OrderedDict()
    free, hits, newest = capacity, 0, 0
    for asked in sequences.requests:
        if asked.blocks > capacity:
            continue
        held: list[int] = []
        for content in asked.contents[: asked.lookups]:
            block = first.get(content)
            if block is None:
                break
            held.append(block)
            del cached[block]
        hits += len(held)
        free -= asked.blocks - len(held)
        while free < 0:
            block, _ = cached.popitem(last=False)
            _forget(first, spare, content_of.pop(block), block)
            free += 1
        for content in asked.contents[len(held) :]:
            newest += 1
            content_of[newest] = content
            if content in first:
                spare.setdefault(content, []).append(newest)
            else:
                first[content] = newest
            held.append(newest)
        free += asked.blocks - len(held)
        for block in reversed(held):
            cached[block] = None
    return hits


def _forget(first: dict[int, int], spare: dict[int, list[int]], content: int, block: int) -> None:
    copies = spare.get(content)
    if copies is None:
        del first[content]
        return
    if first[content] == block:
        first[content] = copies.pop(0)
    else:
        copies.remove(block)
    if not copies:
        del spare[content]


class ScoredPool:
    """Victims by a least key among the blocks that nothing depends on; see `cache/eviction/leaves.py`."""

    def __init__(self, sequences: Sequences, capacity: int, key: Key) -> None:
        self.sequences = sequences
        self.capacity = capacity
        self.key = key
        self.free = capacity
        self.copies: dict[int, list[int]] = {}
        self.children: dict[int, int] = {}
        self.hits: dict[int, int] = {}
        self.priority: dict[int, int] = {}
        self.content_of: list[int] = []
        """Block → content; a block's number is also its order of publication"""
        self.used: list[int] = []
        """Block → order of its last release, −1 while it is held"""
        self.round: list[int] = []
        self.heap: list[tuple[Any, int]] = []
        self.queued: set[int] = set()
        self.released = 0
        self.rounds = 0

    def run(self) -> int:
        """Hit blocks of all requests that fit."""
        return sum(self.serve(asked) for asked in self.sequences.requests if asked.blocks <= self.capacity)

    def serve(self, asked: Asked) -> int:
        held = []
        for content in asked.contents[: asked.lookups]:
            copies = self.copies.get(content)
            if copies is None:
                break
            held.append(copies[0])
            self.used[copies[0]] = -1
            self.hits[content] += 1
            if asked.priority > self.priority[content]:
                self.priority[content] = asked.priority
        found = len(held)
        self.take(asked.prompt_blocks - found)
        taken = asked.prompt_blocks
        while len(held) < asked.full_prompt_blocks:
            held.append(self.publish(asked.contents[len(held)], asked.priority))
        while taken < asked.blocks or len(held) < len(asked.contents):
            if taken == len(held):
                self.take(1)
                taken += 1
            else:
                held.append(self.publish(asked.contents[len(held)], asked.priority))
        self.release(held, asked.blocks - len(held))
        return found

    def publish(self, content: int, priority: int) -> int:
        block = len(self.content_of)
        self.content_of.append(content)
        self.used.append(-1)
        self.round.append(0)
        copies = self.copies.get(content)
        if copies is None:
            self.copies[content] = [block]
            parent = self.sequences.parents[content]
            self.children[parent] = self.children.get(parent, 0) + 1
            self.hits[content] = 0
            self.priority[content] = priority
        else:
            copies.append(block)
            self.priority[content] = max(self.priority[content], priority)
            self.push_cached(copies)
        return block

    def release(self, held: list[int], unpublished: int) -> None:
        self.free += unpublished
        self.rounds += 1
        for block in reversed(held):
            self.released += 1
            self.used[block] = self.released
            self.round[block] = self.rounds
        for block in held:
            if self.may_go(block):
                self.push(block)

    def take(self, count: int) -> None:
        """Blocks with one owner; evicts where none is free."""
        self.free -= count
        while self.free < 0:
            key, block = heapq.heappop(self.heap)
            self.queued.discard(block)
            if not self.may_go(block):
                continue
            if self.key(self, block) != key:
                self.push(block)
                continue
            self.forget(block)
            self.free += 1

    def forget(self, block: int) -> None:
        content = self.content_of[block]
        self.used[block] = -1
        copies = self.copies[content]
        copies.remove(block)
        if copies:
            return
        del self.copies[content], self.hits[content], self.priority[content]
        parent = self.sequences.parents[content]
        self.children[parent] -= 1
        if not self.children[parent]:
            del self.children[parent]
            self.push_cached(self.copies.get(parent, []))

    def may_go(self, block: int) -> bool:
        if self.used[block] < 0:
            return False
        content = self.content_of[block]
        return content not in self.children or len(self.copies[content]) > 1

    def push_cached(self, blocks: list[int]) -> None:
        for block in blocks:
            if self.used[block] >= 0:
                self.push(block)

    def push(self, block: int) -> None:
        if block not in self.queued:
            self.queued.add(block)
            heapq.heappush(self.heap, (self.key(self, block), block))


def scored_hits(sequences: Sequences, capacity: int, policy: str, alpha: float = 1.0, beta: float = 1.0) -> int:
    """Hit blocks under `fifo`, `lfu`, `lrc`, `lrc-age` or `priority`."""
    depths = sequences.depths
    keys: dict[str, Key] = {
        "fifo": lambda pool, block: block,
        "lfu": lambda pool, block: (pool.hits[pool.content_of[block]], pool.used[block]),
        "lrc": lambda pool, block: (
            pool.hits[pool.content_of[block]],
            -depths[pool.content_of[block]],
            pool.used[block],
        ),
        "lrc-age": lambda pool, block: (
            alpha * pool.hits[pool.content_of[block]] + beta * pool.round[block],
            pool.used[block],
        ),
        "priority": lambda pool, block: (pool.priority[pool.content_of[block]], pool.used[block]),
    }
    return ScoredPool(sequences, capacity, keys[policy]).run()
