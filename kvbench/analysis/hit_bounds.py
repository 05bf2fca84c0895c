"""What no eviction policy can beat, and adaptive replacement on the device's blocks.

Both count distinct contents and no further copies of them.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

from kvbench.cache.arc import ArcOrder

if TYPE_CHECKING:
    from kvbench.analysis.hit_sequences import Sequences

_NEVER = 1 << 60


def bound_hits(sequences: Sequences) -> int:
    """Hit blocks when nothing is ever evicted."""
    known: set[int] = set()
    hits = 0
    for asked in sequences.requests:
        for content in asked.contents[: asked.lookups]:
            if content not in known:
                break
            hits += 1
        known.update(asked.contents)
    return hits


def optimum_hits(sequences: Sequences, capacity: int) -> int:
    """Hit blocks of Belady's optimum: the content whose next look-up is farthest away goes.

    A request holds its own blocks, so what else is kept must fit beside them. Whoever looks a block up looks up all
    blocks before it, so a parent's next look-up is never later than its child's; with the deepest first among equals
    the optimum obeys the law of children before parents by itself. It keeps as many look-ups alive as can be kept: each
    is an interval from one use to the next look-up, and beside each request there is room for so many of them.
    """
    following = _next_lookups(sequences, capacity)
    cached: dict[int, int] = {}
    heap: list[tuple[int, int, int]] = []
    hits = 0
    for asked, following_of in zip(sequences.requests, following, strict=True):
        if asked.blocks > capacity:
            continue
        for content in asked.contents[: asked.lookups]:
            if content not in cached:
                break
            hits += 1
        for content in asked.contents:
            cached.pop(content, None)
        while len(cached) > capacity - asked.blocks:
            when, _, content = heapq.heappop(heap)
            if cached.get(content) == -when:
                del cached[content]
        for content, when in zip(asked.contents, following_of, strict=True):
            if when < _NEVER:
                cached[content] = when
                heapq.heappush(heap, (-when, -sequences.depths[content], content))
    return hits


def _next_lookups(sequences: Sequences, capacity: int) -> list[list[int]]:
    """Of every content of every request, the next request that looks it up."""
    seen: dict[int, int] = {}
    following: list[list[int]] = []
    for number in range(len(sequences.requests) - 1, -1, -1):
        asked = sequences.requests[number]
        following.append([seen.get(content, _NEVER) for content in asked.contents])
        if asked.blocks <= capacity:
            for content in asked.contents[: asked.lookups]:
                seen[content] = number
    return following[::-1]


def arc_hits(sequences: Sequences, capacity: int) -> int:
    """Hit blocks under adaptive replacement, restricted to contents that nobody holds and no cached content continues.

    A use is a hit or the end of a request, tail first, so that a block is never less recent than those behind it."""
    order = ArcOrder(capacity)
    cached: set[int] = set()
    children: dict[int, int] = {}
    hits = 0

    def evict(incoming: int | None, held: set[int]) -> None:
        victims = order.order(incoming)
        victim = next(one for one in victims if one not in held and not children.get(one))
        order.removed(victim, evicted=True)
        cached.discard(victim)
        children[sequences.parents[victim]] -= 1

    for asked in sequences.requests:
        if asked.blocks > capacity:
            continue
        for content in asked.contents[: asked.lookups]:
            if content not in cached:
                break
            hits += 1
        held = set(asked.contents)
        room = capacity - (asked.blocks - len(asked.contents))
        for content in reversed(asked.contents):
            if content in cached:
                order.used(content)
                continue
            if len(cached) >= room:
                evict(content, held)
            order.added(content, content)
            cached.add(content)
            parent = sequences.parents[content]
            children[parent] = children.get(parent, 0) + 1
        while len(cached) > room:
            evict(None, held)
    return hits
