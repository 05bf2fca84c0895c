"""The swap area: blocks of preempted sequences in host memory, until they come back.

Unlike the host tier it holds sequences, not contents: partly filled tails too, and blocks that others share as well,
because those others may be gone, and their blocks evicted, when the sequence returns. What is still on the device then
is shared again and not copied.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvbench.cache.types import NULL_BLOCK
from kvbench.errors import InternalError

if TYPE_CHECKING:
    from kvbench.cache.books import Books

NOTHING = -1
"""In place of a null table entry"""


@dataclass(slots=True, eq=False)
class Swapped:
    """A sequence out on the swap area. `blocks` [groups][⌈tokens / block size⌉] are swap block ids."""

    tokens: int
    blocks: list[list[int]]
    is_lost: bool = False
    """Its copy out failed, or it was given up: the sequence is to be recomputed"""

    @property
    def held(self) -> list[int]:
        return [block for group in self.blocks for block in group if block != NOTHING]


class SwapArea:
    """Swap block ids 0 … `num_blocks` − 1: free, or held by one swapped sequence."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.free = list(range(num_blocks - 1, -1, -1))
        self.owners: dict[int, Swapped] = {}
        self.busy: set[int] = set()
        """With a copy under way"""

    @property
    def used(self) -> int:
        return self.num_blocks - len(self.free)

    def take(self, tokens: int, wanted: list[list[bool]]) -> Swapped | None:
        """Room for a sequence, `wanted` [groups][blocks] saying which entries are blocks; None when there is not."""
        if sum(map(sum, wanted)) > len(self.free):
            return None
        blocks = [[self.free.pop() if one else NOTHING for one in group] for group in wanted]
        swapped = Swapped(tokens, blocks)
        for block in swapped.held:
            self.owners[block] = swapped
            self.busy.add(block)
        return swapped

    def finish(self, block: int, *, ok: bool) -> None:
        """A copy out of the device has ended; a sequence of which a block is missing is lost whole."""
        self.busy.discard(block)
        swapped = self.owners[block]
        if swapped.is_lost:
            self._release(block)
        elif not ok:
            self.give_up(swapped)

    def give_up(self, swapped: Swapped) -> None:
        """The sequence is recomputed, aborted, or back on the device: its blocks are free once nothing copies them."""
        swapped.is_lost = True
        for block in swapped.held:
            if block not in self.busy and self.owners.get(block) is swapped:
                self._release(block)

    def _release(self, block: int) -> None:
        del self.owners[block]
        self.free.append(block)


def swap_out(books: Books, row: int) -> Swapped | None:
    """Decide to copy all computed blocks of a row out, and give the row up; None, and nothing changed, when the area
    has no room or the row is not all there."""
    area, tables = books.swap, books.tables
    computed = int(tables.computed[row])
    entries = tables.blocks[:, row, : tables.blocks_for(computed)]
    sources = entries[entries != NULL_BLOCK].tolist()
    if area is None or not sources or row in books.arrivals.rows:
        return None
    if not set(books.pending.copy_destination).isdisjoint(sources):
        return None
    swapped = area.take(computed, (entries != NULL_BLOCK).tolist())
    if swapped is None:
        return None
    books.pending.swap_out_device += sources
    books.pending.swap_out_swap += swapped.held
    return swapped


def swap_in(books: Books, row: int, swapped: Swapped, first: list[int]) -> list[int]:
    """Decide to copy a sequence back into the row's new blocks, of each group from logical block `first` on; returns
    the device blocks that will arrive."""
    area = books.swap
    if area is None or swapped.is_lost:
        raise InternalError("a sequence is to come back that is not on the swap area")
    arriving: list[int] = []
    for group, start in enumerate(first):
        entries = books.tables.blocks[group, row, start : len(swapped.blocks[group])].tolist()
        for block, swap_block in zip(entries, swapped.blocks[group][start:], strict=True):
            if (block == NULL_BLOCK) != (swap_block == NOTHING):
                raise InternalError(f"block {block} of row {row} does not match what was swapped out")
            if swap_block != NOTHING:
                books.pending.swap_in_swap.append(swap_block)
                books.pending.swap_in_device.append(block)
                books.pool.pin(block)
                area.busy.add(swap_block)
                arriving.append(block)
    area.give_up(swapped)
    return arriving


def check_swap(books: Books) -> None:
    """Free and held swap blocks make up the area, and each held one belongs to one sequence."""
    area = books.swap
    if area is None:
        return
    if sorted([*area.free, *area.owners]) != list(range(area.num_blocks)):
        raise InternalError("free and held swap blocks do not make up the swap area")
    if not area.busy <= set(area.owners):
        raise InternalError("a free swap block has a copy under way")
    for block, swapped in area.owners.items():
        if block not in swapped.held:
            raise InternalError(f"swap block {block} belongs to a sequence that does not name it")
