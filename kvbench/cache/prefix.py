"""The prefix index: which blocks on the device hold a full block of tokens that somebody may ask for again.

Every distinct content (tokens of a block, and the content before it) has a content id that is never reused; a block is
a hit only when its tokens are equal and its parent's id is that of the hit before it. Two indexes know this: a chain of
digests (`hash_index.py`) and a tree of tokens (`radix.py`); on equal histories they find the same.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Protocol

import numpy as np

from kvbench.cache.types import Int32s, Int64s

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvbench.cache.content import KeyChain
    from kvbench.cache.eviction.policy import EvictionPolicy
    from kvbench.cache.pool import BlockPool
    from kvbench.cache.siblings import Siblings

_INDEXES = {"hash": "kvbench.cache.hash_index:HashIndex", "radix": "kvbench.cache.radix:RadixIndex"}
PREFIX_CACHES = ("none", *_INDEXES)
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


class PrefixIndex(Protocol):
    """The contents of one layer group that have a block on the device."""

    siblings: Siblings | None
    """Told of contents that come and go, for reuse inside a block."""
    lower_tier: KnownElsewhere | None
    listener: Callable[[str, bytes], None] | None

    def __len__(self) -> int:
        """Distinct contents."""
        ...

    @property
    def needs_keys(self) -> bool:
        """Whether keys must be given now; else they may be empty."""
        ...

    def holds(self, key: bytes) -> bool:
        """Whether a content has this key; one that a look-up did not find then has it by collision."""
        ...

    def names(self) -> list[bytes]:
        """Keys of all contents."""
        ...

    def known(self, key: bytes, tokens: Int32s, parent: int) -> int | None:
        """The id of this content; None when it is not here, 0 when another content has its key."""
        ...

    def find(self, keys: Sequence[bytes], tokens: Int32s, root: int) -> Int64s:
        """Blocks of the longest published prefix; `tokens` [n, block_size] belong to the n `keys`."""
        ...

    def publish(self, keys: Sequence[bytes], tokens: Int32s, blocks: Int64s, parent: int) -> None:
        """Offer consecutive full blocks of one sequence; `parent` is the content id before the first, 0 when that
        block could not be published. What collides with another content stays private, and so do its followers."""
        ...

    def publish_tails(self, keys: Sequence[bytes], tokens: Int32s, blocks: Int64s, parents: Int64s) -> None:
        """Offer one full block each of many sequences; `tokens` [n, block_size], parents as in `publish`."""
        ...

    def adopt(self, key: bytes, tokens: Int32s, block: int, content: int, parent: int) -> None:
        """Publish a block that comes back from a lower tier under the content id it had."""
        ...

    def remove(self, blocks: Int64s) -> list[int]:
        """Forget these blocks; returns those that were the last copy of their content."""
        ...

    def check(self) -> list[int]:
        """Every published block of this index, copies included; `InternalError` where the index is not consistent."""
        ...


def make_index(
    name: str, pool: BlockPool, labels: Labels, policy: EvictionPolicy, group: int, chain: KeyChain
) -> PrefixIndex:
    """An empty index of the given kind; without a prefix cache nobody asks it anything."""
    module, _, attribute = _INDEXES["hash" if name == "none" else name].partition(":")
    index: PrefixIndex = getattr(import_module(module), attribute)(pool, labels, policy, group, chain)
    return index
