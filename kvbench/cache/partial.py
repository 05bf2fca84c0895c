"""Reuse inside a block: a sequence whose tokens part from all others in the middle of a block copies its front.

Behind the hits of whole blocks, of the published blocks that continue the last hit, the one that begins with most of
the wanted tokens is the source. Its KV of those tokens depends on nothing behind them, so a copy of the block serves.
The last known token is never covered. The source is held from the look-up to the end of the copy; while it had no owner
it leaves the supply for that time, so it counts as need. Where that is too much, the plan does without. Ends of
sequences that do not fill a block are not published (E24).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kvbench.cache.prefix import NO_BLOCKS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvbench.cache.books import Books
    from kvbench.cache.content import Content
    from kvbench.cache.types import Int64s


@dataclass(frozen=True, slots=True)
class PartialHit:
    """The front of the block behind the whole hits."""

    tokens: int
    """The same in all layer groups, the least of what each of them found"""
    sources: Int64s
    """[groups] whose front is copied"""
    was_cached: NDArray[np.bool_]
    """[groups] which of them nobody owned"""

    @property
    def revived(self) -> int:
        return int(np.count_nonzero(self.was_cached))


NO_PARTIAL = PartialHit(0, NO_BLOCKS, np.zeros(0, dtype=bool))


def find_partial(books: Books, content: Content, hit_blocks: int, parents: list[int]) -> PartialHit:
    """`parents`: per layer group, the content id behind which the next block comes. Reads only."""
    start = hit_blocks * books.block_size
    wanted = content.tokens[start : min(start + books.block_size, content.length - 1)]
    least, sources = len(wanted), []
    for index, parent in zip(books.indexes, parents, strict=True):
        tokens, block = (0, 0) if index.siblings is None else index.siblings.longest(parent, wanted)
        if not tokens:
            return NO_PARTIAL
        least = min(least, tokens)
        sources.append(block)
    found = np.array(sources, dtype=np.int64)
    was_cached = (books.pool.refs.take(found) == 0) & (books.pool.pins.take(found) == 0)
    return PartialHit(least, found, was_cached)


def hold_sources(books: Books, hit: PartialHit) -> None:
    """Before anything is evicted."""
    books.pool.retain(hit.sources, hit.was_cached)
    books.policy.forget(hit.sources)


def copy_fronts(books: Books, row: int, logical: int, hit: PartialHit) -> None:
    """The row's block `logical` gets the contents; the copy alone keeps the sources from now on."""
    for group, source in enumerate(hit.sources.tolist()):
        books.copy_on_write(source, int(books.tables.blocks[group, row, logical]))
    books.drop(hit.sources)
