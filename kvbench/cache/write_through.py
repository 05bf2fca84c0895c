"""Offload of completed blocks: a block is copied to the host tier while it stays on the device.

Contents are counted each time a sequence computes them or finds them on the device; they go down when they were seen
`store_threshold` times, so that what never comes back does not fill the tier. The ledger's order of use is kept
tail-first, as in the other direction: of one prefix, the block that nothing continues is the first to go.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvbench.cache.below import Below
    from kvbench.cache.books import Books
    from kvbench.cache.content import Content
    from kvbench.cache.look_up import GroupHits
    from kvbench.cache.tier_order import TierKey


class Seen:
    """How often contents were seen, of the last `capacity` names."""

    def __init__(self, threshold: int, capacity: int) -> None:
        self.threshold, self.capacity = threshold, capacity
        self._counts: dict[TierKey, int] = {}

    def is_due(self, name: TierKey) -> bool:
        """Count once more; whether that is often enough."""
        if self.threshold <= 1:
            return True
        count = self._counts.pop(name, 0) + 1
        self._counts[name] = count
        if len(self._counts) > self.capacity:
            del self._counts[next(iter(self._counts))]
        return count >= self.threshold


def write_through(books: Books, row: int, first: int, end: int) -> None:
    """Blocks [first, end) of a row have just been published, as far as they could be."""
    content, below = books.tables.contents[row], books.below
    if below is None or content is None:
        return
    keys = content.keys(books.chain, end)
    for group in range(books.num_groups):
        blocks = books.tables.blocks[group, row, first:end].tolist()
        _store(books, below, group, keys[first:end], blocks)
        _touch(below, group, keys[:first])


def write_hits_through(books: Books, content: Content, groups: list[GroupHits]) -> None:
    """A newcomer has found these on the device."""
    if books.below is None:
        return
    for group, hits in enumerate(groups):
        if hits.published:
            keys = content.keys(books.chain, hits.published)[: hits.published]
            _store(books, books.below, group, keys, hits.device[: hits.published].tolist())


def _store(books: Books, below: Below, group: int, keys: Sequence[bytes], blocks: list[int]) -> None:
    for key, block in zip(reversed(keys), reversed(blocks), strict=True):
        if books.pool.content_ids[block] and books.seen.is_due((group, key)):
            below.store(group, block, books.pending)


def _touch(below: Below, group: int, keys: Sequence[bytes]) -> None:
    for key in reversed(keys):
        block = below.host.blocks.get((group, key))
        if block is not None:
            below.host.touch(block)
