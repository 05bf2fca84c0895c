"""The prefix index: which blocks on the device hold a full block of tokens that somebody may ask for again.

A key alone is never believed. Every distinct content (tokens of a block, and the content before it) has a content
id that is never reused; a block is a hit only when its tokens are equal and its parent's id is that of the hit
before it. A digest that collides, even a constant one, therefore costs hits and never gives wrong KV (E20).
"""

from __future__ import annotations

from itertools import repeat
from typing import TYPE_CHECKING, Protocol

import numpy as np

from kvbench.cache.types import Int32s, Int64s

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvbench.cache.eviction.policy import EvictionPolicy
    from kvbench.cache.pool import BlockPool

PREFIX_CACHES = ("none", "hash")
NO_BLOCKS: Int64s = np.zeros(0, dtype=np.int64)


class Labels:
    """What is known of published blocks, by block id, shared by the indexes of all layer groups."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.tokens = np.zeros((num_blocks + 1, block_size), dtype=np.int32)
        self.parent_ids: Int64s = np.zeros(num_blocks + 1, dtype=np.int64)
        self.keys: list[bytes] = [b""] * (num_blocks + 1)
        self._last_id = 0
        self._roots: dict[str | None, int] = {}

    def new_ids(self, count: int) -> int:
        """First of `count` fresh content ids, all positive."""
        first = self._last_id + 1
        self._last_id += count
        return first

    def salts(self) -> dict[int, str | None]:
        """Root id → salt."""
        return {root: salt for salt, root in self._roots.items()}

    def root_id(self, salt: str | None) -> int:
        """The parent id of first blocks: negative, one per salt."""
        return self._roots.setdefault(salt, -1 - len(self._roots))


class KnownElsewhere(Protocol):
    """A lower tier that may already have an id for a content that is published again."""

    def content_id(self, group: int, key: bytes, tokens: Int32s, parent: int) -> int: ...


class HashIndex:
    """Key → block for one layer group, with further copies of the same content in `spare`."""

    def __init__(self, pool: BlockPool, labels: Labels, policy: EvictionPolicy, group: int) -> None:
        self._pool = pool
        self._labels = labels
        self._policy = policy
        self._group = group
        self.blocks: dict[bytes, int] = {}
        self.spare: dict[bytes, list[int]] = {}
        self.lower_tier: KnownElsewhere | None = None
        self.listener: Callable[[str, bytes], None] | None = None

    def __len__(self) -> int:
        """Distinct contents."""
        return len(self.blocks)

    def find(self, keys: Sequence[bytes], tokens: Int32s, root: int) -> Int64s:
        """Blocks of the longest published prefix; `tokens` [n, block_size] belong to the n `keys`."""
        if not keys or keys[0] not in self.blocks:
            return NO_BLOCKS
        found = np.array(list(map(self.blocks.get, keys, repeat(0))), dtype=np.int64)
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
        """Offer consecutive full blocks of one sequence; `parent` is the content id before the first, 0 when that
        block could not be published. What collides with another content stays private, and so do its followers."""
        if len(blocks) > 1 and self._all_new(keys) and parent:
            self._publish_run(keys, tokens, blocks, parent)
            return
        for key, own, block in zip(keys, tokens, blocks.tolist(), strict=True):
            if not parent:
                return
            parent = self._publish_one(key, own, block, parent)

    def publish_tails(self, keys: list[bytes], tokens: Int32s, blocks: Int64s, parents: Int64s) -> None:
        """Offer one full block each of many sequences; `tokens` [n, block_size], parents as in `publish`."""
        if not self._all_new(keys) or np.count_nonzero(parents) < len(keys):
            for key, own, block, parent in zip(keys, tokens, blocks.tolist(), parents.tolist(), strict=True):
                if parent:
                    self._publish_one(key, own, block, parent)
            return
        self._label_new(keys, tokens, blocks, parents, self._labels.new_ids(len(keys)))

    def adopt(self, key: bytes, tokens: Int32s, block: int, content: int, parent: int) -> None:
        """Publish a block that comes back from a lower tier under the content id it had."""
        self.blocks[key] = block
        self._label(key, tokens, block, content, parent)
        self._announce("stored", key)

    def remove(self, blocks: Int64s) -> list[int]:
        """Forget these blocks; returns those that were the last copy of their content."""
        gone: list[int] = blocks.tolist()
        labels = self._labels
        self._pool.content_ids[blocks] = 0
        if self.spare:
            gone = [block for block in gone if not self._drop_copy(block)]
        keys = [labels.keys[block] for block in gone]
        for key in keys:
            del self.blocks[key]
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
            self.blocks[key] = copies.pop(0)
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
        self._label_new(keys, tokens, blocks, parents, first)

    def _label_new(self, keys: Sequence[bytes], tokens: Int32s, blocks: Int64s, parents: Int64s, first: int) -> None:
        """Contents that nobody knew, with the ids from `first` on."""
        labels, names = self._labels, blocks.tolist()
        self._pool.content_ids[blocks] = np.arange(first, first + len(names))
        labels.parent_ids[blocks] = parents
        labels.tokens[blocks] = tokens
        for block, key in zip(names, keys, strict=True):
            labels.keys[block] = key
        self.blocks.update(zip(keys, names, strict=True))
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
