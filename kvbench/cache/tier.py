"""Ledger of one lower tier, host or disk: which contents lie in which of its blocks.

A tier extends the prefix cache. It is inclusive: contents that go up keep their copy, which is reclaimed like any other
when its turn comes (`tier_order.py`). A block with a copy under way, in or out, is pinned. Block ids run from 0 to
`num_blocks` − 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from xxhash import xxh3_128_digest

from kvbench.errors import InternalError

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvbench.cache.tier_order import TierKey, TierOrder


@dataclass(frozen=True, slots=True)
class Stored:
    """Contents as every tier knows them: `tokens` are the block's own as int32 bytes, `content` and `parent` the ids of
    `prefix.py`."""

    name: TierKey
    tokens: bytes
    content: int
    parent: int

    def digest(self) -> bytes:
        """16 bytes that name these contents and no others of this process; a file on disk carries them (E75)."""
        group, key = self.name
        numbers = b"".join(number.to_bytes(8, "little", signed=True) for number in (group, self.content, self.parent))
        return xxh3_128_digest(numbers + len(key).to_bytes(4, "little") + key + self.tokens)


class Tier:
    """Name → block; `order` says who gives way, `give_up` hears of it while the contents are still there."""

    def __init__(self, what: str, num_blocks: int, order: TierOrder) -> None:
        """`what`, as in "host", is for messages."""
        self.what = what
        self.num_blocks = num_blocks
        self.order = order
        self.give_up: Callable[[int, Stored], None] | None = None
        self.blocks: dict[TierKey, int] = {}
        self.stored: list[Stored | None] = [None] * num_blocks
        self.pins = [0] * num_blocks
        self.free = list(range(num_blocks - 1, -1, -1))
        self.is_off = False
        self._spoiled: set[int] = set()
        """Pinned blocks whose contents turned out to be bad; they are dropped with their last pin"""

    @property
    def used(self) -> int:
        return self.num_blocks - len(self.free)

    def find(self, name: TierKey, tokens: bytes, parent: int) -> int | None:
        """The block with these contents, parent included; the order of use is not touched."""
        block = self.blocks.get(name)
        if block is None or block in self._spoiled:
            return None
        stored = self.stored[block]
        return block if stored is not None and stored.parent == parent and stored.tokens == tokens else None

    def at(self, block: int) -> Stored:
        """What lies in a block that holds something."""
        stored = self.stored[block]
        if stored is None:
            raise InternalError(f"{self.what} block {block} is used but holds nothing")
        return stored

    def touch(self, block: int) -> None:
        self.at(block)
        self.order.used(block)

    def put(self, stored: Stored) -> int | None:
        """A place for new contents: the block that must receive a copy, pinned; None when they lie here already, or
        when nobody can give way (E64: then they are simply not here)."""
        held = self.blocks.get(stored.name)
        if held is not None and self.at(held).content == stored.content and held not in self._spoiled:
            self.touch(held)
            return None
        if held is not None and not self.pins[held]:
            self.drop(held)
        if self.is_off or stored.name in self.blocks or not self._make_room(stored.name):
            return None
        block = self.free.pop()
        self.blocks[stored.name] = block
        self.stored[block] = stored
        self.pins[block] += 1
        self.order.added(block, stored.name)
        return block

    def drop(self, block: int, *, evicted: bool = False) -> None:
        """Forget the contents of a block that nothing is copying; `evicted` when others need the room."""
        if self.pins[block]:
            raise InternalError(f"{self.what} block {block} cannot be dropped: it is pinned")
        del self.blocks[self.at(block).name]
        self.stored[block] = None
        self.free.append(block)
        self.order.removed(block, evicted=evicted)

    def spoil(self, block: int) -> None:
        """Its contents are bad: nobody finds them any more, and they go with the last pin."""
        if self.pins[block]:
            self._spoiled.add(block)
        else:
            self.drop(block)

    def is_spoiled(self, block: int) -> bool:
        return block in self._spoiled

    def pin(self, block: int) -> None:
        self.pins[block] += 1

    def unpin(self, block: int) -> None:
        if self.pins[block] <= 0:
            raise InternalError(f"{self.what} block {block} is not part of any transfer")
        self.pins[block] -= 1
        if not self.pins[block] and (block in self._spoiled or self.is_off):
            self._spoiled.discard(block)
            self.drop(block)

    def switch_off(self) -> None:
        """Nothing is found or stored here any more."""
        self.is_off = True
        for block in list(self.blocks.values()):
            self.spoil(block)

    def _make_room(self, incoming: TierKey) -> bool:
        if self.free:
            return True
        victim = next((block for block in self.order.order(incoming) if not self.pins[block]), None)
        if victim is None:
            return False
        if self.give_up is not None:
            self.give_up(victim, self.at(victim))
        self.drop(victim, evicted=True)
        return True
