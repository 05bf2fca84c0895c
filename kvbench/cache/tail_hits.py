"""The look-up of prompts where some layers slide: the longest hit that every group can serve."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvbench.cache.tail_index import TailIndex

if TYPE_CHECKING:
    from kvbench.cache.books import Books
    from kvbench.cache.content import Content
    from kvbench.cache.types import Int64s
    from kvbench.cache.windows import Windows


def find_with_tails(books: Books, windows: Windows, content: Content, limit: int) -> list[tuple[int, Int64s]] | None:
    """Of each group the first logical block that is taken and the blocks from there to the common end, at most `limit`;
    None without a hit.

    A full group offers every length up to its longest; a window group those whose readable tail it has. One group after
    the other shrinks the common length until nobody does (E51), which is the longest that all of them offer.
    """
    common, full = _full_hits(books, windows, content, limit)
    keys = content.keys(books.tail_chain, common)[:common]
    tails = [(group, index) for group, index in enumerate(books.indexes) if isinstance(index, TailIndex)]
    before = -1
    while common != before:
        before = common
        for _, index in tails:
            common = index.longest(keys, common)
    if not common:
        return None
    hits = {group: (0, found[:common]) for group, found in full.items()}
    for group, index in tails:
        first = windows.first_block(group, common * books.block_size)
        hits[group] = first, index.blocks_of(keys[first:common])
    return [hits[group] for group in range(books.num_groups)]


def _full_hits(books: Books, windows: Windows, content: Content, limit: int) -> tuple[int, dict[int, Int64s]]:
    """What the full groups have in common, and each one's blocks."""
    found: dict[int, Int64s] = {}
    if not windows.full_groups:
        return limit, found
    needs_keys = any(books.indexes[group].needs_keys for group in windows.full_groups)
    keys = content.keys(books.chain, limit)[:limit] if needs_keys else []
    tokens = content.tokens[: limit * books.block_size].reshape(limit, books.block_size)
    root = books.labels.root_id(content.salt)
    for group in windows.full_groups:
        found[group] = books.indexes[group].find(keys[:limit], tokens[:limit], root)
        limit = len(found[group])
    return limit, found
