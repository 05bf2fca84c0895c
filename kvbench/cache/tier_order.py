"""In which order a lower tier's blocks lose their contents: one small policy per name, behind `TierOrder`."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator

TierKey = tuple[int, bytes]
"""Layer group and prefix key"""

TIER_ORDERS = {"lru": "kvbench.cache.tier_order:LruOrder", "arc": "kvbench.cache.arc:ArcOrder"}


class TierOrder(Protocol):
    """Told what happens to a tier's blocks; asked who goes next. Sequences touch their blocks tail-first."""

    def added(self, block: int, name: TierKey) -> None:
        """`block` now holds the contents called `name`."""
        ...

    def used(self, block: int) -> None:
        """Its contents were asked for, or stored again."""
        ...

    def removed(self, block: int, *, evicted: bool) -> None:
        """It holds nothing any more; `evicted` when it had to make room."""
        ...

    def order(self, incoming: TierKey | None = None) -> Iterator[int]:
        """All blocks that hold something, the next victim first; the tier takes the first that no copy holds. Asked
        with the name that the room is for, before `removed` and `added`."""
        ...


def make_tier_order(name: str, num_blocks: int) -> TierOrder:
    """The policy called `name` for a tier of `num_blocks` blocks."""
    module, _, attribute = TIER_ORDERS[name].partition(":")
    order: TierOrder = getattr(import_module(module), attribute)(num_blocks)
    return order


class LruOrder:
    """Least recently used first."""

    def __init__(self, num_blocks: int) -> None:
        self._blocks: dict[int, None] = {}

    def added(self, block: int, name: TierKey) -> None:
        self._blocks[block] = None

    def used(self, block: int) -> None:
        self._blocks[block] = self._blocks.pop(block)

    def removed(self, block: int, *, evicted: bool) -> None:
        del self._blocks[block]

    def order(self, incoming: TierKey | None = None) -> Iterator[int]:
        return iter(self._blocks)
