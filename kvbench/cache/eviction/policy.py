"""What the pool asks of an eviction policy, and the policies by name.

The pool's law holds under every policy: a block goes before the block it continues (children before parents), so that
what stays cached can always be reached from its first token. Referenced blocks never go.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from kvbench.cache.pool import BlockPool
    from kvbench.cache.types import CacheSettings, Int64s

_SCORES = "kvbench.cache.eviction.scores"
EVICTION_POLICIES = {
    "lru": "kvbench.cache.eviction.lru:make_lru",
    "fifo": f"{_SCORES}:make_fifo",
    "lfu": f"{_SCORES}:make_lfu",
    "lrc": f"{_SCORES}:make_lrc",
    "lrc-age": f"{_SCORES}:make_lrc_age",
    "priority": f"{_SCORES}:make_priority",
}


class EvictionPolicy(Protocol):
    """Told what happens to blocks; asked for victims. Sequences release tail-first, in one call per sequence."""

    watches_contents: bool
    """Whether `published` must be called."""
    watches_priority: bool
    """Whether `used_by` must be called."""

    def add(self, blocks: Int64s) -> None:
        """These became cached, in this order."""
        ...

    def forget(self, blocks: Int64s) -> None:
        """These were hit: no longer cached."""
        ...

    def take(self, count: int) -> Int64s:
        """`count` victims in order, fewer only when there are no more; the caller removes them from the index."""
        ...

    def published(self, block: int, content: int, parent: int) -> None:
        """A block has entered the index."""
        ...

    def used_by(self, priority: int, blocks: Int64s) -> None:
        """A request of this priority has hit these blocks, or is about to publish them."""
        ...

    def order(self) -> list[int]:
        """All cached blocks that could be named now, next victim first; for tests and invariants."""
        ...


def make_policy(settings: CacheSettings, pool: BlockPool, name: str | None = None) -> EvictionPolicy:
    """The policy that the settings name (or `name`), over an empty pool."""
    module, _, attribute = EVICTION_POLICIES[name or settings.eviction].partition(":")
    policy: EvictionPolicy = getattr(import_module(module), attribute)(settings, pool)
    return policy
