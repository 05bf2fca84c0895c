"""Least recently used first, for caches with window groups: what lies outside its window is worth less than a tail.

A block that fell out of its window serves only prompts that part from the sequence just behind it; a tail serves the
next turn of its session. So what fell out has a log of its own, and victims come from there as long as it holds more
than half of all cached blocks. Half, not all: the end of a shared system prompt lies outside the window of whoever
computed it first, and must live long enough to be found again. A block that two prompts have hit stands among the
tails: one hit is what a session's own tail gets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvbench.cache.eviction.lru import LruLog
from kvbench.cache.prefix import NO_BLOCKS

if TYPE_CHECKING:
    from kvbench.cache.pool import BlockPool
    from kvbench.cache.types import Int64s


class LruWithOutside:
    """Two logs, and how many living entries each has."""

    watches_contents = False
    watches_priority = False

    def __init__(self, pool: BlockPool) -> None:
        self._inside, self._outside = LruLog(pool), LruLog(pool)
        self._is_outside = np.zeros(pool.num_blocks + 1, dtype=bool)
        self._is_inside = np.zeros(pool.num_blocks + 1, dtype=bool)
        self._counts = [0, 0]

    @property
    def inside(self) -> int:
        """Cached blocks that go last."""
        return self._counts[0]

    def add(self, blocks: Int64s) -> None:
        self._inside.add(blocks)
        self._is_inside[blocks] = True
        self._counts[0] += len(blocks)

    def add_outside(self, blocks: Int64s) -> None:
        """These became cached because they fell out of their window, and hardly anybody has hit them."""
        self._outside.add(blocks)
        self._is_outside[blocks] = True
        self._counts[1] += len(blocks)

    def forget(self, blocks: Int64s) -> None:
        for at, (log, mine) in enumerate(((self._inside, self._is_inside), (self._outside, self._is_outside))):
            here = blocks[mine.take(blocks)]
            log.forget(here)
            mine[here] = False
            self._counts[at] -= len(here)

    def take(self, count: int) -> Int64s:
        inside, outside = self._counts
        share = min(max((count + outside - inside + 1) // 2, count - inside, 0), count, outside)
        parts = ((self._outside, share), (self._inside, min(count - share, inside)))
        found = [log.take(wanted) for log, wanted in parts if wanted]
        victims = np.concatenate(found) if found else NO_BLOCKS
        self.forget(victims)
        return victims

    def published(self, block: int, content: int, parent: int) -> None:
        """The order of release is all that counts here."""

    def used_by(self, priority: int, blocks: Int64s) -> None:
        """Nor does priority."""

    def order(self) -> list[int]:
        """Those outside first; how the two interleave depends on how many are taken at once."""
        return [*self._outside.order(), *self._inside.order()]
