"""Free memory as pieces: first fit, and neighbours grow together again when they are freed."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from kvbench.errors import InternalError

if TYPE_CHECKING:
    from collections.abc import Iterator


class Extents:
    """Free extents of blocks 1 … num_blocks, sorted by their first block; no two of them touch."""

    def __init__(self, num_blocks: int) -> None:
        self._starts = [1]
        self._sizes = [num_blocks]
        self.total = num_blocks
        """Free blocks"""

    def items(self) -> Iterator[tuple[int, int]]:
        return zip(self._starts, self._sizes, strict=True)

    def taken_for(self, count: int) -> int:
        """Blocks that an allocation of `count` really takes."""
        return count

    def find(self, count: int) -> int | None:
        """Position of the first extent with `count` blocks."""
        return next((at for at, size in enumerate(self._sizes) if size >= count), None)

    def largest(self) -> int:
        return max(self._sizes, default=0)

    def smaller_than(self, count: int) -> int:
        """Free blocks in pieces too small for `count`."""
        return sum(size for size in self._sizes if size < count)

    def allocate(self, count: int) -> int:
        """First of `count` adjacent blocks."""
        at = self.find(count)
        if at is None:
            raise InternalError(f"no piece of {count} free blocks; the largest has {self.largest()}")
        start = self._starts[at]
        self.total -= count
        if self._sizes[at] == count:
            del self._starts[at], self._sizes[at]
        else:
            self._starts[at] += count
            self._sizes[at] -= count
        return start

    def free(self, start: int, count: int) -> None:
        """Give back blocks [start, start + count); `InternalError` names a block that is free already."""
        at = bisect_left(self._starts, start)
        before = at > 0 and self._starts[at - 1] + self._sizes[at - 1]
        if before > start or (at < len(self._starts) and self._starts[at] < start + count):
            raise InternalError(f"block {start if before > start else self._starts[at]} is freed twice")
        self.total += count
        if before == start and at:
            at -= 1
            self._sizes[at] += count
        else:
            self._starts.insert(at, start)
            self._sizes.insert(at, count)
        if at + 1 < len(self._starts) and self._starts[at] + self._sizes[at] == self._starts[at + 1]:
            self._sizes[at] += self._sizes.pop(at + 1)
            del self._starts[at + 1]
