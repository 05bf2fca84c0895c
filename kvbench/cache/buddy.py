"""Free memory as a buddy system (Knowlton 1965): pieces of 2^k blocks that start at a multiple of their size.

A piece is split in halves until it is just large enough, and a freed piece grows together with its other half whenever
that is free too. A pool that is no power of two is a row of such pieces, largest first.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import TYPE_CHECKING

from kvbench.errors import InternalError

if TYPE_CHECKING:
    from collections.abc import Iterator


class BuddyExtents:
    """Free pieces of blocks 1 … num_blocks by size; of pieces of one size the one with the lowest block goes first."""

    def __init__(self, num_blocks: int) -> None:
        self._free: list[list[int]] = [[] for _ in range(num_blocks.bit_length())]
        """Order k → offsets of the free pieces of 2^k blocks, sorted"""
        self.total = num_blocks
        """Free blocks"""
        at = 0
        for order in reversed(range(num_blocks.bit_length())):
            if num_blocks >> order & 1:
                self._free[order].append(at)
                at += 1 << order

    def items(self) -> Iterator[tuple[int, int]]:
        return ((offset + 1, 1 << order) for order, offsets in enumerate(self._free) for offset in offsets)

    def taken_for(self, count: int) -> int:
        """Blocks that an allocation of `count` really takes."""
        return 1 << (count - 1).bit_length()

    def largest(self) -> int:
        return max((1 << order for order, offsets in enumerate(self._free) if offsets), default=0)

    def smaller_than(self, count: int) -> int:
        """Free blocks in pieces too small for `count`."""
        return sum(size for _, size in self.items() if size < count)

    def allocate(self, count: int) -> int:
        """First block of a piece with at least `count` adjacent blocks."""
        wanted = (count - 1).bit_length()
        order = next((k for k in range(wanted, len(self._free)) if self._free[k]), None)
        if order is None:
            raise InternalError(f"no piece of {count} free blocks; the largest has {self.largest()}")
        offset = self._free[order].pop(0)
        while order > wanted:
            order -= 1
            insort(self._free[order], offset + (1 << order))
        self.total -= 1 << wanted
        return offset + 1

    def free(self, start: int, count: int) -> None:
        """Give back the piece that was allocated for `count` blocks at `start`; `InternalError` names a block that is
        free already."""
        order, offset = (count - 1).bit_length(), start - 1
        self._refuse_free(offset, order)
        self.total += 1 << order
        while order + 1 < len(self._free) and self._take_out(offset ^ (1 << order), order):
            offset &= ~(1 << order)
            order += 1
        insort(self._free[order], offset)

    def _take_out(self, offset: int, order: int) -> bool:
        at = bisect_left(self._free[order], offset)
        found = at < len(self._free[order]) and self._free[order][at] == offset
        if found:
            del self._free[order][at]
        return found

    def _refuse_free(self, offset: int, order: int) -> None:
        end = offset + (1 << order)
        for k, offsets in enumerate(self._free):
            at = bisect_left(offsets, offset + 1 - (1 << k))
            if at < len(offsets) and offsets[at] < end:
                raise InternalError(f"block {max(offsets[at], offset) + 1} is freed twice")
