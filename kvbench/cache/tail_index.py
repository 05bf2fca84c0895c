"""The prefix index of a sliding-window group: what may be found again when the blocks before it are gone.

In a full group a block is believed only together with its parent. Here the parents of a cached tail leave first, so a
block is named by the sha256 chain of all tokens up to its end, whatever `hash_function` says: 256 bits stand for the
whole prefix (E20), and equal keys are equal contents. A hit of h blocks needs only those that its first query reads.
"""

from __future__ import annotations

from itertools import repeat
from typing import TYPE_CHECKING

import numpy as np

from kvbench.cache.hash_index import HashIndex

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvbench.cache.content import KeyChain
    from kvbench.cache.eviction.policy import EvictionPolicy
    from kvbench.cache.pool import BlockPool
    from kvbench.cache.prefix import Labels
    from kvbench.cache.types import Int32s, Int64s

_NOBODY = -(1 << 62)
"""The parent of every block here, a root of its own: nothing depends on the block before it, and no policy must think
so"""


class TailIndex(HashIndex):
    """sha256 key → block, with further copies in `spare`. `tail` is how many blocks before a boundary are read."""

    def __init__(
        self, pool: BlockPool, labels: Labels, policy: EvictionPolicy, group: int, chain: KeyChain, tail: int
    ) -> None:
        super().__init__(pool, labels, policy, group, chain)
        self._tail = max(1, tail)

    def longest(self, keys: Sequence[bytes], blocks: int) -> int:
        """The longest hit of at most `blocks` blocks: all that its first query reads is published."""
        known = self.blocks
        if all(key in known for key in keys[max(0, blocks - self._tail) : blocks]):
            return blocks
        here = np.fromiter(map(known.__contains__, keys[:blocks]), bool, blocks)
        ends = np.arange(1, blocks + 1)
        last_gap = np.maximum.accumulate(np.where(here, 0, ends))
        good = (ends - last_gap >= np.minimum(ends, self._tail)).nonzero()[0]
        return int(good[-1]) + 1 if len(good) else 0

    def blocks_of(self, keys: Sequence[bytes]) -> Int64s:
        """The block of every key; all of them are published."""
        return np.fromiter(map(self.blocks.get, keys, repeat(0)), np.int64, len(keys))

    def publish(self, keys: Sequence[bytes], tokens: Int32s, blocks: Int64s, parent: int = _NOBODY) -> None:
        """Offer full blocks, of one sequence or of many."""
        self.publish_tails(keys, tokens, blocks, np.full(len(keys), _NOBODY))
