"""Looking a prompt up: what every layer group, and every tier below, has of it. Reads only."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from kvbench.cache.prefix import NO_BLOCKS
from kvbench.cache.tail_hits import find_with_tails

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvbench.cache.below import Below, Found
    from kvbench.cache.books import Books
    from kvbench.cache.content import Content
    from kvbench.cache.types import Int32s, Int64s
    from kvbench.cache.windows import Windows


@dataclass(slots=True)
class GroupHits:
    """What one layer group found for one prompt."""

    device: Int64s
    below: list[Found]
    was_cached: NDArray[np.bool_]
    """Which device hits nobody owned: they leave the supply without leaving the cache"""
    first: int = 0
    """Logical block of the first of them"""
    claimed: Int64s = field(default_factory=lambda: NO_BLOCKS)
    """Hits in a window group that other rows own"""
    pending: int = 0
    """How many device hits, the last ones, are still on their way"""

    @property
    def published(self) -> int:
        return len(self.device) - self.pending

    def cut(self, blocks: int) -> None:
        """Keep the first `blocks` logical blocks."""
        del self.below[max(0, blocks - len(self.device)) :]
        self.pending = max(0, min(self.pending, blocks - self.published))
        self.device = self.device[:blocks]


MISS = GroupHits(NO_BLOCKS, [], np.zeros(0, dtype=bool))


def look_up(books: Books, content: Content) -> tuple[list[GroupHits], int]:
    """Hits of every group, cut to the length they have in common. The last token is never covered (E12)."""
    limit = (content.length - 1) // books.block_size
    if books.windows is not None:
        return _look_up_with_tails(books, books.windows, content, limit)
    keys = content.keys(books.chain, limit)[:limit] if books.indexes[0].needs_keys else []
    tokens = content.named(books.chain, 0, limit)
    root = books.labels.root_id(content.salt)
    groups: list[GroupHits] = []
    for group, index in enumerate(books.indexes):
        device = index.find(keys, tokens, root)
        hits = GroupHits(device, [], MISS.was_cached)
        if books.below is not None:
            _find_below(books, books.below, group, keys, tokens, hits, root)
        if not len(hits.device) and not hits.below:
            return [MISS] * books.num_groups, 0
        groups.append(hits)
    common = min(len(hits.device) + len(hits.below) for hits in groups)
    for hits in groups:
        if common < len(hits.device) + len(hits.below):
            hits.cut(common)
        hits.was_cached = books.pool.refs.take(hits.device) == 0
        if books.pool.in_transfer:
            hits.was_cached &= books.pool.pins.take(hits.device) == 0
    return groups, common


def content_before(books: Books, content: Content, hits: GroupHits) -> int:
    """The content id behind which the first block without a hit comes."""
    if books.below is not None and hits.below:
        return books.below.at(hits.below[-1]).content
    if hits.pending:
        return books.arrivals.contents[int(hits.device[-1])].content
    if len(hits.device):
        return int(books.pool.content_ids[hits.device[-1]])
    return books.labels.root_id(content.salt)


def _look_up_with_tails(books: Books, windows: Windows, content: Content, limit: int) -> tuple[list[GroupHits], int]:
    found = find_with_tails(books, windows, content, limit)
    if found is None:
        return [MISS] * books.num_groups, 0
    groups: list[GroupHits] = []
    for group, (first, device) in enumerate(found):
        unowned = books.pool.refs.take(device) == 0
        claimed = device[~unowned] if group in windows.kind_of_group else NO_BLOCKS
        if books.pool.in_transfer:
            unowned &= books.pool.pins.take(device) == 0
        groups.append(GroupHits(device, [], unowned, first, claimed))
    return groups, found[0][0] + len(found[0][1])


def device_hits_only(groups: list[GroupHits]) -> tuple[list[GroupHits], int]:
    """Of a sequence on the swap area: what the device still has in every group; the rest comes from the area."""
    common = min(len(hits.device) for hits in groups)
    for hits in groups:
        if hits is not MISS:
            hits.cut(common)
            hits.was_cached = hits.was_cached[:common]
    return groups, common


def _find_below(
    books: Books, below: Below, group: int, keys: list[bytes], tokens: Int32s, hits: GroupHits, root: int
) -> None:
    """What continues the device hits: blocks on their way, then contents on lower tiers. A key that the device holds
    for another content ends the search: the block could not be published under it."""
    index, arrivals, pending = books.indexes[group], books.arrivals, []
    parent = int(books.pool.content_ids[hits.device[-1]]) if len(hits.device) else root
    for at in range(len(hits.device), len(keys)):
        name, own = (group, keys[at]), tokens[at].tobytes()
        block = arrivals.find(name, own, parent) if not hits.below else None
        found = below.find(name, own, parent) if block is None and not index.holds(keys[at]) else None
        if block is not None:
            pending.append(block)
            parent = arrivals.contents[block].content
        elif found is not None:
            hits.below.append(found)
            parent = below.at(found).content
        else:
            break
    if pending:
        hits.pending = len(pending)
        hits.device = np.concatenate([hits.device, np.array(pending, dtype=np.int64)])
