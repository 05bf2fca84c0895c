"""The block pool: which state each physical block is in, who counts on it, and which are free.

    state         refs   pins   found in
    free          0      0      the free stack
    cached        0      0      the prefix index and the eviction policy
    used          ≥ 1    0      block tables (and parked rows, see books.py)
    in transfer   ≥ 0    ≥ 1    a transfer that is not complete
    null          –      –      block 0, placeholder of unused table entries

Every block is in exactly one state; the four counts sum to the pool. A block with a content id is published.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np

from kvbench.cache.types import NULL_BLOCK, Int64s
from kvbench.errors import InternalError

if TYPE_CHECKING:
    from numpy.typing import NDArray


class BlockState(IntEnum):
    """A block is in exactly one of these; their counts sum to the pool and the null block."""

    FREE = 0
    CACHED = 1
    USED = 2
    IN_TRANSFER = 3
    NULL = 4


FREE, CACHED, USED, IN_TRANSFER = (np.uint8(state) for state in list(BlockState)[:4])


class BlockPool:
    """Blocks 1 … num_blocks as arrays indexed by block id. Every batch operation is a vector operation.

    Block ids travel as int64 in here, numpy's own index type: a gather by int32 takes three times as long.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.state = np.full(num_blocks + 1, FREE, dtype=np.uint8)
        self.state[NULL_BLOCK] = BlockState.NULL
        self.refs = np.zeros(num_blocks + 1, dtype=np.int32)
        self.pins = np.zeros(num_blocks + 1, dtype=np.int32)
        self.hits = np.zeros(num_blocks + 1, dtype=np.int32)
        """Times that an admission found the block's contents; 0 again when they are evicted"""
        self.content_ids = np.zeros(num_blocks + 1, dtype=np.int64)
        """0: not published"""
        self.groups = np.zeros(num_blocks + 1, dtype=np.uint8)
        """Layer group that a block was last allocated for"""
        self.free_stack = np.arange(num_blocks, 0, -1, dtype=np.int64)
        self.free = num_blocks
        self.cached = 0
        self.in_transfer = 0
        self._seen = np.zeros(num_blocks + 1, dtype=np.int64)
        self._order = np.arange(num_blocks + 1, dtype=np.int64)

    @property
    def used(self) -> int:
        return self.num_blocks - self.free - self.cached - self.in_transfer

    def allocate(self, count: int) -> Int64s:
        """[count] blocks, used, with one owner each. Free blocks only: evict first."""
        if count > self.free:
            raise InternalError(f"{count} blocks wanted, {self.free} of {self.num_blocks} are free")
        left = self.free - count
        blocks = self.free_stack[left : self.free][::-1].copy()
        self.free = left
        self.refs[blocks] = 1
        self.state[blocks] = USED
        return blocks

    def retain(self, blocks: Int64s, was_cached: NDArray[np.bool_]) -> None:
        """One more owner for each of these distinct blocks; `was_cached` [n] marks those at ref 0 until now."""
        self.refs[blocks] = self.refs.take(blocks) + 1
        self.hits[blocks] += 1
        revived = blocks[was_cached]
        self.state[revived] = USED
        self.cached -= len(revived)

    def release(self, blocks: Int64s, owners: Int64s | int = 1) -> Int64s:
        """One owner less for each, or `owners` [n] of them. Unpublished blocks without an owner become free; returns,
        in order, those that became cached. `InternalError` names a block that is foreign, null, free already, or
        listed twice."""
        left = self._refs_of(blocks) - owners
        kept = np.count_nonzero(left)
        if kept and np.minimum.reduce(left) < 0:
            block = int(blocks[left < 0][0])
            raise InternalError(f"block {block} ({self.state_name(block)}) is released but nobody owns it")
        self._require_distinct(blocks)
        self.refs[blocks] = left
        return self._settle(blocks[left == 0] if kept else blocks)

    def evict(self, blocks: Int64s) -> None:
        """Cached blocks whose contents are forgotten become free."""
        bad = self.state.take(blocks) != CACHED
        if np.count_nonzero(bad):
            block = int(blocks[bad][0])
            raise InternalError(f"block {block} ({self.state_name(block)}) cannot be evicted: it is not cached")
        self.cached -= len(blocks)
        self.hits[blocks] = 0
        self._push_free(blocks)

    def pin(self, block: int) -> None:
        """A transfer reads or writes this block until `unpin`."""
        if self.pins[block] == 0:
            if self.state[block] != USED:
                raise InternalError(f"block {block} ({self.state_name(block)}) cannot take part in a transfer")
            self.state[block] = IN_TRANSFER
            self.in_transfer += 1
        self.pins[block] += 1

    def unpin(self, block: int) -> bool:
        """One transfer is done. True when the block has just become cached, for want of an owner."""
        if self.pins[block] <= 0:
            raise InternalError(f"block {block} ({self.state_name(block)}) is not part of any transfer")
        self.pins[block] -= 1
        if self.pins[block]:
            return False
        self.in_transfer -= 1
        self.state[block] = USED
        return self.refs[block] == 0 and len(self._settle(np.array([block]))) == 1

    def state_name(self, block: int) -> str:
        return BlockState(int(self.state[block])).name.lower().replace("_", " ")

    def _settle(self, blocks: Int64s) -> Int64s:
        """Blocks without an owner go where they belong: stay in transfer, cached, or free."""
        if self.in_transfer:
            blocks = blocks[self.pins.take(blocks) == 0]
        ids = self.content_ids.take(blocks)
        known = np.count_nonzero(ids)
        cached = blocks if known == len(blocks) else blocks[ids != 0]
        if known < len(blocks):
            self._push_free(blocks[ids == 0] if known else blocks)
        self.state[cached] = CACHED
        self.cached += len(cached)
        return cached

    def _push_free(self, blocks: Int64s) -> None:
        end = self.free + len(blocks)
        self.free_stack[self.free : end] = blocks
        self.free = end
        self.state[blocks] = FREE

    def _refs_of(self, blocks: Int64s) -> NDArray[np.int32]:
        foreign = blocks.view(np.uint64) > self.num_blocks  # a negative id is a very large one here
        if np.count_nonzero(foreign):
            block = int(blocks[foreign][0])
            raise InternalError(f"block {block} is not one of this pool's 1 … {self.num_blocks}")
        refs: NDArray[np.int32] = self.refs.take(blocks)
        return refs

    def _require_distinct(self, blocks: Int64s) -> None:
        order = self._order[: len(blocks)]
        self._seen[blocks] = order
        twice = self._seen.take(blocks) != order
        if np.count_nonzero(twice):
            raise InternalError(f"block {int(blocks[twice][0])} is released twice at once")
