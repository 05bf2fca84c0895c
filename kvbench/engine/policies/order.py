"""Who is next in line. A preempted request has the key it had before, so it stands where it stood (E41)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from kvbench.cache.types import CacheManager
    from kvbench.engine.sequence import Sequence

Key = tuple[float, ...]
WINDOW = 32
"""Waiting requests, first arrived first, among which `longest-prefix-match` chooses."""


class Order(Protocol):
    """Who is next in line."""

    window: int
    """1: the first by key is next. More: of so many first by key, the one with the highest `preference`."""

    def key(self, sequence: Sequence) -> Key:
        """Lower is earlier; the same for as long as the sequence lives."""
        ...

    def preference(self, sequence: Sequence) -> int:
        """As things stand in this step."""
        ...

    def begin_step(self) -> None:
        """Forget what held in the last step."""
        ...


class FirstCome:
    """By scheduled arrival, ties by request id."""

    window = 1

    def __init__(self, manager: CacheManager) -> None:
        self._manager = manager

    def key(self, sequence: Sequence) -> Key:
        return sequence.order

    def preference(self, sequence: Sequence) -> int:
        return 0

    def begin_step(self) -> None:
        """Nothing here depends on the step."""


class ByPriority(FirstCome):
    """The higher priority first, then by arrival. Nobody who runs is preempted for it; see `victim`."""

    def key(self, sequence: Sequence) -> Key:
        return (-sequence.job.priority, *sequence.order)


class ShortestFirst(FirstCome):
    """Fewest tokens of prompt and declared output together, then by arrival."""

    def key(self, sequence: Sequence) -> Key:
        return (sequence.job.total_tokens, *sequence.order)


class LongestPrefixMatch(FirstCome):
    """Most tokens in the prefix cache first, then by arrival, among the first `WINDOW` by arrival.

    A look-up costs what planning an admission costs, so each request is looked up once a step and only while somebody
    may be admitted. What the step itself evicts is noticed in the next one; the admission plans anew in any case.
    """

    window = WINDOW

    def __init__(self, manager: CacheManager) -> None:
        super().__init__(manager)
        self._found: dict[int | None, int] = {}
        """Ticket → tokens found"""

    def preference(self, sequence: Sequence) -> int:
        found = self._found.get(sequence.ticket)
        if found is None:
            found = self._manager.plan(sequence.content, 0).cached_tokens
            self._found[sequence.ticket] = found
        return found

    def begin_step(self) -> None:
        self._found.clear()
