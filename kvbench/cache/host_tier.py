"""Ledger of the host tier: evicted device blocks whose contents still lie in host memory.

The tier extends the prefix cache. It is inclusive: a promoted block keeps its host copy, which is reclaimed like any
other. A block with a copy under way, in or out, is pinned.
Host block ids run from 0 to `num_blocks` − 1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvbench.cache.types import Int32s
from kvbench.errors import InternalError

if TYPE_CHECKING:
    from kvbench.cache.prefix import Labels
    from kvbench.cache.tier_order import TierKey, TierOrder


class HostTier:
    """Key → host block; who goes first is the order's business."""

    def __init__(self, num_blocks: int, block_size: int, order: TierOrder) -> None:
        self.num_blocks = num_blocks
        self.order = order
        self.blocks: dict[TierKey, int] = {}
        self.names: list[TierKey | None] = [None] * num_blocks
        self.tokens = np.zeros((num_blocks, block_size), dtype=np.int32)
        self.content_ids = np.zeros(num_blocks, dtype=np.int64)
        self.parent_ids = np.zeros(num_blocks, dtype=np.int64)
        self.pins = [0] * num_blocks
        self.free = list(range(num_blocks - 1, -1, -1))

    @property
    def used(self) -> int:
        return self.num_blocks - len(self.free)

    def find(self, group: int, key: bytes, tokens: Int32s, parent: int) -> int | None:
        """The host block with this content, parent included; the order of use is not touched."""
        block = self.blocks.get((group, key))
        if block is None or self.parent_ids[block] != parent or (self.tokens[block] != tokens).any():
            return None
        return block

    def content_id(self, group: int, key: bytes, tokens: Int32s, parent: int) -> int:
        """The id of a content that lies here, else 0."""
        block = self.find(group, key, tokens, parent)
        return 0 if block is None else int(self.content_ids[block])

    def touch(self, block: int) -> None:
        if self.names[block] is None:
            raise InternalError(f"host block {block} is used but holds nothing")
        self.order.used(block)

    def store(self, group: int, labels: Labels, device_block: int, content: int) -> int | None:
        """A place for the contents of an evicted device block: the host block that must receive a copy, pinned; None
        when the content lies here already, or when every host block is pinned (E64: then it is simply not here)."""
        name = (group, labels.keys[device_block])
        held = self.blocks.get(name)
        if held is not None and self.content_ids[held] == content:
            self.touch(held)
            return None
        if held is not None and not self.pins[held]:
            self.drop(held)
        if name in self.blocks or not self._make_room(name):
            return None
        block = self.free.pop()
        self.blocks[name] = block
        self.names[block] = name
        self.tokens[block] = labels.tokens[device_block]
        self.content_ids[block] = content
        self.parent_ids[block] = labels.parent_ids[device_block]
        self.pins[block] += 1
        self.order.added(block, name)
        return block

    def drop(self, block: int, *, evicted: bool = False) -> None:
        """Forget the contents of a host block that nothing is copying; `evicted` when others need the room."""
        name = self.names[block]
        if name is None or self.pins[block]:
            raise InternalError(f"host block {block} cannot be dropped: it is {'pinned' if name else 'free'}")
        del self.blocks[name]
        self.names[block] = None
        self.content_ids[block] = 0
        self.free.append(block)
        self.order.removed(block, evicted=evicted)

    def pin(self, block: int) -> None:
        self.pins[block] += 1

    def unpin(self, block: int) -> None:
        if self.pins[block] <= 0:
            raise InternalError(f"host block {block} is not part of any transfer")
        self.pins[block] -= 1

    def _make_room(self, incoming: TierKey) -> bool:
        if self.free:
            return True
        victim = next((block for block in self.order.order(incoming) if not self.pins[block]), None)
        if victim is not None:
            self.drop(victim, evicted=True)
        return victim is not None
