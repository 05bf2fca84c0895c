"""The hash chain as a prefix index: a dict from key to block.

A key alone is never believed: tokens and the parent's content id are compared. A digest that collides, even a constant
one, therefore costs hits and never gives wrong KV (E20).
"""

from __future__ import annotations

from itertools import repeat
from typing import TYPE_CHECKING

import numpy as np

from kvbench.cache.prefix import NO_BLOCKS
from kvbench.errors import InternalError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvbench.cache.content import KeyChain
    from kvbench.cache.eviction.policy import EvictionPolicy
    from kvbench.cache.pool import BlockPool
    from kvbench.cache.prefix import KnownElsewhere, Labels
    from kvbench.cache.siblings import Siblings
    from kvbench.cache.types import Int32s, Int64s


class HashIndex:
    """Key → block for one layer group, with further copies of the same content in `spare`."""

    def __init__(self, pool: BlockPool, labels: Labels, policy: EvictionPolicy, group: int, chain: KeyChain) -> None:
        self._pool = pool
        self._labels = labels
        self._policy = policy
        self._group = group
        self.blocks: dict[bytes, int] = {}
        self.spare: dict[bytes, list[int]] = {}
        self.siblings: Siblings | None = None
        self.lower_tier: KnownElsewhere | None = None
        self.listener: Callable[[str, bytes], None] | None = None

    def __len__(self) -> int:
        return len(self.blocks)

    @property
    def needs_keys(self) -> bool:
        return True

    def holds(self, key: bytes) -> bool:
        return key in self.blocks

    def names(self) -> list[bytes]:
        return list(self.blocks)

    def known(self, key: bytes, tokens: Int32s, parent: int) -> int | None:
        holder = self.blocks.get(key)
        if holder is None:
            return None
        same = self._labels.parent_ids[holder] == parent and (self._labels.tokens[holder] == tokens).all()
        return int(self._pool.content_ids[holder]) if same else 0

    def find(self, keys: Sequence[bytes], tokens: Int32s, root: int) -> Int64s:
        if not keys or keys[0] not in self.blocks:
            return NO_BLOCKS
        found = np.fromiter(map(self.blocks.get, keys, repeat(0)), np.int64, len(keys))
        if np.count_nonzero(found) < len(found):
            found = found[: int(np.argmin(found != 0))]
        parents = np.empty(len(found) + 1, dtype=np.int64)
        parents[0] = root
        self._pool.content_ids.take(found, out=parents[1:])
        wrong = self._labels.parent_ids.take(found) != parents[:-1]
        held, wanted = self._labels.tokens.take(found, axis=0), tokens[: len(found)]
        if held.tobytes() != wanted.tobytes() or np.count_nonzero(wrong):
            wrong |= (held != wanted).any(axis=1)
            found = found[: int(np.argmax(wrong))]
        return found

    def publish(self, keys: Sequence[bytes], tokens: Int32s, blocks: Int64s, parent: int) -> None:
        if len(blocks) > 1 and self._all_new(keys) and parent:
            self._publish_run(keys, tokens, blocks, parent)
            return
        for key, own, block in zip(keys, tokens, blocks.tolist(), strict=True):
            if not parent:
                return
            parent = self._publish_one(key, own, block, parent)

    def publish_tails(self, keys: Sequence[bytes], tokens: Int32s, blocks: Int64s, parents: Int64s) -> None:
        if not self._all_new(keys) or np.count_nonzero(parents) < len(keys):
            for key, own, block, parent in zip(keys, tokens, blocks.tolist(), parents.tolist(), strict=True):
                if parent:
                    self._publish_one(key, own, block, parent)
            return
        self.publish_new(keys, tokens, blocks, parents, self._labels.new_ids(len(keys)))

    def adopt(self, key: bytes, tokens: Int32s, block: int, content: int, parent: int) -> None:
        self.blocks[key] = block
        self._label(key, tokens, block, content, parent)
        if self.siblings is not None:
            self.siblings.add(parent, tokens, block)
        self._announce("stored", key)

    def remove(self, blocks: Int64s) -> list[int]:
        gone: list[int] = blocks.tolist()
        labels = self._labels
        self._pool.content_ids[blocks] = 0
        if self.spare:
            gone = [block for block in gone if not self._drop_copy(block)]
        keys = [labels.keys[block] for block in gone]
        for key in keys:
            del self.blocks[key]
        if self.siblings is not None:
            for block in gone:
                self.siblings.remove(int(labels.parent_ids[block]), labels.tokens[block])
        if self.listener is not None:
            for key in keys:
                self.listener("removed", key)
        return gone

    def _drop_copy(self, block: int) -> bool:
        key = self._labels.keys[block]
        copies = self.spare.get(key)
        if copies is None:
            return False
        if self.blocks[key] == block:
            self.blocks[key] = other = copies.pop(0)
            if self.siblings is not None:
                self.siblings.add(int(self._labels.parent_ids[block]), self._labels.tokens[block], other)
        else:
            copies.remove(block)
        if not copies:
            del self.spare[key]
        return True

    def _all_new(self, keys: Sequence[bytes]) -> bool:
        if self.lower_tier is not None or self._policy.watches_contents:
            return False
        distinct = set(keys)
        return len(distinct) == len(keys) and self.blocks.keys().isdisjoint(distinct)

    def _publish_run(self, keys: Sequence[bytes], tokens: Int32s, blocks: Int64s, parent: int) -> None:
        """`_publish_one` for consecutive blocks, none of whose keys is known."""
        first = self._labels.new_ids(len(keys))
        parents = np.arange(first - 1, first - 1 + len(keys))
        parents[0] = parent
        self.publish_new(keys, tokens, blocks, parents, first)

    def publish_new(self, keys: Sequence[bytes], tokens: Int32s, blocks: Int64s, parents: Int64s, first: int) -> None:
        """Contents that nobody knew, with the ids from `first` on."""
        labels, names = self._labels, blocks.tolist()
        self._pool.content_ids[blocks] = np.arange(first, first + len(names))
        labels.parent_ids[blocks] = parents
        labels.tokens[blocks] = tokens
        for block, key in zip(names, keys, strict=True):
            labels.keys[block] = key
        self.blocks.update(zip(keys, names, strict=True))
        if self.siblings is not None:
            for one, block, parent in zip(tokens, names, parents.tolist(), strict=True):
                self.siblings.add(parent, one, block)
        if self.listener is not None:
            for key in keys:
                self.listener("stored", key)

    def _publish_one(self, key: bytes, tokens: Int32s, block: int, parent: int) -> int:
        """The content id that the block now has, 0 when its key belongs to another content."""
        holder = self.blocks.get(key)
        if holder is None:
            content = self._known_below(key, tokens, parent) or self._labels.new_ids(1)
            self.adopt(key, tokens, block, content, parent)
            return content
        if self._labels.parent_ids[holder] != parent or (self._labels.tokens[holder] != tokens).any():
            return 0
        content = int(self._pool.content_ids[holder])
        self.spare.setdefault(key, []).append(block)
        self._label(key, tokens, block, content, parent)
        return content

    def _known_below(self, key: bytes, tokens: Int32s, parent: int) -> int:
        return self.lower_tier.content_id(self._group, key, tokens, parent) if self.lower_tier is not None else 0

    def _label(self, key: bytes, tokens: Int32s, block: int, content: int, parent: int) -> None:
        self._pool.content_ids[block] = content
        self._labels.parent_ids[block] = parent
        self._labels.tokens[block] = tokens
        self._labels.keys[block] = key
        if self._policy.watches_contents:
            self._policy.published(block, content, parent)

    def _announce(self, event: str, key: bytes) -> None:
        if self.listener is not None:
            self.listener(event, key)

    def check(self) -> list[int]:
        labels, ids, seen = self._labels, self._pool.content_ids, []
        for key, first in self.blocks.items():
            copies = [first, *self.spare.get(key, ())]
            seen += copies
            for block in copies:
                same = (labels.tokens[block] == labels.tokens[first]).all()
                if labels.keys[block] != key or ids[block] != ids[first] or not same:
                    raise InternalError(f"block {block} is indexed under a key that it does not have")
        if self.siblings is not None:
            self.siblings.check(list(self.blocks.values()), labels)
        return seen
