"""Blocks on their way up to the device, and the rows that wait for them.

A look-up answers hit, pending or miss. A pending block is one that an earlier admission has asked a lower tier for: a
newcomer with the same prefix shares it and waits for it too. Nothing is in the prefix index before all of its bytes are
there, and those of everything before it; so a copy that fails takes nothing back, it only spoils the rows that wait.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from kvbench.cache.books import Books
    from kvbench.cache.content import Content
    from kvbench.cache.tier import Stored
    from kvbench.cache.tier_order import TierKey
    from kvbench.cache.types import Int64s


@dataclass(slots=True, eq=False)
class Wait:
    """What one admission waits for, and what it publishes then."""

    blocks: set[int]
    content: Content
    entries: Int64s
    """[groups, n] the first n blocks of its row"""
    is_spoiled: bool = False


@dataclass(slots=True)
class Arrivals:
    """All that is on its way."""

    rows: dict[int, Wait] = field(default_factory=dict)
    """Loading rows, in the order of their admission"""
    orphans: list[Wait] = field(default_factory=list)
    """Of rows that were given up: what comes is published all the same"""
    contents: dict[int, Stored] = field(default_factory=dict)
    """Block on its way → what it will hold, if others may share it"""
    names: dict[TierKey, int] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.rows or self.orphans)

    def find(self, name: TierKey, tokens: bytes, parent: int) -> int | None:
        """The block that will hold these contents."""
        block = self.names.get(name)
        if block is None:
            return None
        stored = self.contents[block]
        return block if stored.parent == parent and stored.tokens == tokens else None

    def expect(self, block: int, stored: Stored) -> None:
        """These contents are on their way into `block`; whoever wants them may share it."""
        if stored.name not in self.names:
            self.names[stored.name] = block
            self.contents[block] = stored

    def wait(self, row: int, wait: Wait) -> None:
        self.rows[row] = wait

    def leave(self, row: int) -> None:
        """The row is given up."""
        wait = self.rows.pop(row, None)
        if wait is not None and not wait.is_spoiled:
            self.orphans.append(wait)

    def arrived(self, block: int) -> None:
        """All bytes are there."""
        self._forget(block)
        for wait in (*self.rows.values(), *self.orphans):
            wait.blocks.discard(block)

    def failed(self, block: int) -> None:
        """They will never come: whoever waits for the block is spoiled."""
        self._forget(block)
        for wait in (*self.rows.values(), *self.orphans):
            if block in wait.blocks:
                wait.blocks.discard(block)
                wait.is_spoiled = True

    def take_ready(self) -> list[tuple[int | None, Wait]]:
        """Who has everything, first admitted first, with the row if it is still there; they wait no longer."""
        ready: list[tuple[int | None, Wait]] = [(row, wait) for row, wait in self.rows.items() if _is_ready(wait)]
        for row, _ in ready:
            if row is not None:
                del self.rows[row]
        ready += [(None, wait) for wait in self.orphans if _is_ready(wait)]
        self.orphans = [wait for wait in self.orphans if wait.blocks and not wait.is_spoiled]
        return ready

    def spoiled_rows(self) -> list[int]:
        return [row for row, wait in self.rows.items() if wait.is_spoiled]

    def _forget(self, block: int) -> None:
        stored = self.contents.pop(block, None)
        if stored is not None:
            del self.names[stored.name]


def _is_ready(wait: Wait) -> bool:
    return not wait.blocks and not wait.is_spoiled


def publish_arrived(books: Books, wait: Wait) -> None:
    """Offer what has arrived to the index; blocks that others have published already are passed over."""
    content, end, size = wait.content, wait.entries.shape[1], books.block_size
    if not end:
        return
    keys, tokens = content.keys(books.chain, end), content.tokens[: end * size].reshape(end, size)
    for index, blocks in zip(books.indexes, wait.entries, strict=True):
        ids = books.pool.content_ids.take(blocks)
        first = end if ids.all() else int(np.argmin(ids != 0))
        if first < end:
            parent = int(ids[first - 1]) if first else books.labels.root_id(content.salt)
            index.publish(keys[first:end], tokens[first:], blocks[first:], parent)
