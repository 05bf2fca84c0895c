"""Adaptive replacement (Megiddo and Modha, "ARC: a self-tuning, low overhead replacement cache", FAST 2003, figure 4).

Two lists of names that have a place: `recent` (T1, used once of late) and `frequent` (T2, used at least twice); and of
each the names that left it not long ago, the ghosts (B1, B2). Contents that come back although they are a ghost show
that their list was too short, and move `target`, the size that `recent` should have (the paper's p).
Departures from the paper: a victim that may not go at the moment is passed over, in the chosen list first and then in
the other one; and names may leave without being replaced, which leaves no ghost.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator


class ArcOrder:
    """`TierOrder` by ARC; the oldest name of every list is the first of its dict."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.target = 0.0
        self.recent: dict[Hashable, int] = {}
        """Name → block, as in `frequent`"""
        self.frequent: dict[Hashable, int] = {}
        self.recent_ghosts: dict[Hashable, None] = {}
        self.frequent_ghosts: dict[Hashable, None] = {}
        self._names: dict[int, Hashable] = {}
        self._incoming: Hashable = None
        self._returning: tuple[Hashable, ...] = ()
        """The name that was taken out of the ghosts when room was made for it, until it is added"""

    def used(self, block: int) -> None:
        """Case I: a hit."""
        name = self._names[block]
        (self.recent if name in self.recent else self.frequent).pop(name)
        self.frequent[name] = block

    def added(self, block: int, name: Hashable) -> None:
        """Cases II to IV: a ghost comes back as frequent, anything else begins as recent."""
        self._come_back(name)
        if self._returning == (name,):
            self.frequent[name] = block
        else:
            self._trim_ghosts()
            self.recent[name] = block
        self._names[block] = name
        self._returning = ()

    def removed(self, block: int, *, evicted: bool) -> None:
        """A victim becomes a ghost; the name it made room for sets the target first."""
        if evicted:
            self._come_back(self._incoming)
        name = self._names.pop(block)
        is_recent = name in self.recent
        (self.recent if is_recent else self.frequent).pop(name)
        if evicted:
            (self.recent_ghosts if is_recent else self.frequent_ghosts)[name] = None

    def order(self, incoming: Hashable = None) -> Iterator[int]:
        """The paper's REPLACE, with the target that `incoming` will set; then the other list."""
        self._incoming = incoming
        size, target = len(self.recent), self._target_after(incoming)
        is_ghost = incoming in self.recent_ghosts or incoming in self.frequent_ghosts
        from_recent = size > target or (incoming in self.frequent_ghosts and size == target)
        if from_recent or (not is_ghost and size == self.capacity):
            return chain(self.recent.values(), self.frequent.values())
        return chain(self.frequent.values(), self.recent.values())

    def _target_after(self, incoming: Hashable) -> float:
        """The target when `incoming` is in: a ghost of one list asks for more room for that list."""
        ones, twos = len(self.recent_ghosts), len(self.frequent_ghosts)
        if incoming in self.recent_ghosts:
            return min(self.target + max(twos / ones, 1.0), float(self.capacity))
        if incoming in self.frequent_ghosts:
            return max(self.target - max(ones / twos, 1.0), 0.0)
        return self.target

    def _come_back(self, name: Hashable) -> None:
        """A ghost sets the target and is a ghost no more."""
        if name in self.recent_ghosts or name in self.frequent_ghosts:
            self.target = self._target_after(name)
            self.recent_ghosts.pop(name, None)
            self.frequent_ghosts.pop(name, None)
            self._returning = (name,)

    def _trim_ghosts(self) -> None:
        """Case IV keeps |T1| + |B1| within the capacity c, and all four lists within 2c, before a new name comes in."""
        if self.recent_ghosts and len(self.recent) + len(self.recent_ghosts) >= self.capacity:
            self.recent_ghosts.pop(next(iter(self.recent_ghosts)))
        ghosts = len(self.recent_ghosts) + len(self.frequent_ghosts)
        if self.frequent_ghosts and len(self.recent) + len(self.frequent) + ghosts >= 2 * self.capacity:
            self.frequent_ghosts.pop(next(iter(self.frequent_ghosts)))
