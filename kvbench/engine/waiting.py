"""The queue in front of the engine: an order, and how long a request may be passed over before it goes first.

A request gets its ticket when it first joins the queue and keeps it over preemptions. Whoever is admitted passes over
all that wait with an earlier ticket; one that was passed over `starvation_limit` times is overdue and goes before any
order. A request that waits for blocks which another one is computing is *parked*: it is not offered until they are
there, or until it is overdue.
"""

from __future__ import annotations

import heapq
from bisect import insort
from typing import TYPE_CHECKING

import numpy as np

from kvbench.errors import InternalError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvbench.engine.policies.order import Key, Order
    from kvbench.engine.sequence import Sequence


class PassedOver:
    """By ticket: who waits, and how many admissions of later tickets each of them has seen."""

    def __init__(self) -> None:
        self.counts = np.zeros(64, np.int64)
        self._waits = np.zeros(64, bool)
        self._lowest = self._end = 0

    def join(self, ticket: int) -> None:
        if ticket >= len(self.counts):
            self.counts = np.concatenate([self.counts, np.zeros_like(self.counts)])
            self._waits = np.concatenate([self._waits, np.zeros_like(self._waits)])
        self._waits[ticket] = True
        self._lowest = min(self._lowest, ticket)
        self._end = max(self._end, ticket + 1)

    def leave(self, ticket: int) -> None:
        self._waits[ticket] = False
        if ticket == self._lowest:
            rest = self._waits[ticket : self._end]
            step = int(rest.argmax())
            self._lowest = ticket + step if rest[step] else self._end

    def admit(self, ticket: int, limit: int) -> list[int]:
        """Everyone who waits with an earlier ticket is passed over once more; returns those who now reach the limit."""
        if ticket <= self._lowest:
            return []
        passed = np.flatnonzero(self._waits[self._lowest : ticket]) + self._lowest
        self.counts[passed] += 1
        due: list[int] = passed[self.counts[passed] == limit].tolist()
        return due


class WaitingQueue:
    """Requests that have arrived and do not run."""

    def __init__(self, order: Order, starvation_limit: int) -> None:
        self.order = order
        self.limit = starvation_limit
        self._waiting: dict[int, Sequence] = {}
        """Ticket → who waits, parked or not"""
        self._heap: list[tuple[Key, int]] = []
        self._window: list[tuple[Key, int]] = []
        self._overdue: list[int] = []
        self._parked: dict[int, list[tuple[int, int]]] = {}
        """Ticket of who computes → (tokens it must have computed, ticket of who waits for them)"""
        self._passed = PassedOver()
        self._next_ticket = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Sequence]:
        """In no particular order."""
        return iter(self._waiting.values())

    def push(self, sequence: Sequence) -> None:
        """A newcomer, or a preempted one that goes back to its old place (E41)."""
        if sequence.ticket is None:
            sequence.ticket = self._next_ticket
            self._next_ticket += 1
        ticket = sequence.ticket
        self._waiting[ticket] = sequence
        self._passed.join(ticket)
        if self.is_overdue(sequence):
            heapq.heappush(self._overdue, ticket)
        self._line_up(sequence, ticket)

    def first(self) -> Sequence | None:
        """Who is next in line; None when everyone who waits is parked."""
        while self._overdue:
            sequence = self._waiting.get(self._overdue[0])
            if sequence is not None:
                return sequence
            heapq.heappop(self._overdue)
        return self._head() if self.order.window == 1 else self._best_of_window()

    def admit(self, sequence: Sequence) -> None:
        """It leaves the queue for a seat, and passes over those who joined before it."""
        ticket = self._take_out(sequence)
        for due in self._passed.admit(ticket, self.limit):
            heapq.heappush(self._overdue, due)

    def remove(self, sequence: Sequence) -> None:
        """Aborted while it waited."""
        self._take_out(sequence)

    def is_overdue(self, sequence: Sequence) -> bool:
        """Whether it has been passed over often enough to go first."""
        return int(self._passed.counts[_ticket(sequence)]) >= self.limit

    def park(self, sequence: Sequence, leader: Sequence, until: int) -> None:
        """The first in line waits, out of line, until `leader` has computed `until` tokens or runs no more."""
        ticket = _ticket(sequence)
        self._heap = [entry for entry in self._heap if entry[1] != ticket]
        heapq.heapify(self._heap)
        self._window = [entry for entry in self._window if entry[1] != ticket]
        self._parked.setdefault(_ticket(leader), []).append((until, ticket))

    def progress(self, leader: Sequence, computed: int | None) -> None:
        """`leader` has computed so many tokens; None: it runs no more. Who waited for that is in line again."""
        if leader.ticket is None:
            return
        parked = self._parked.pop(leader.ticket, ())
        still = [entry for entry in parked if computed is not None and entry[0] > computed]
        if still:
            self._parked[leader.ticket] = still
        for entry in parked:
            sequence = self._waiting.get(entry[1])
            if entry not in still and sequence is not None:
                self._line_up(sequence, entry[1])

    @property
    def has_parked(self) -> bool:
        return bool(self._parked)

    def _line_up(self, sequence: Sequence, ticket: int) -> None:
        entry = (self.order.key(sequence), ticket)
        if self._window and entry < self._window[-1]:
            insort(self._window, entry)
            entry = self._window.pop()
        heapq.heappush(self._heap, entry)

    def _take_out(self, sequence: Sequence) -> int:
        ticket = _ticket(sequence)
        del self._waiting[ticket]
        self._passed.leave(ticket)
        sequence.passed_over = int(self._passed.counts[ticket])
        return ticket

    def _head(self) -> Sequence | None:
        """First by key. Entries of those that left are dropped when met."""
        while self._heap:
            sequence = self._waiting.get(self._heap[0][1])
            if sequence is not None:
                return sequence
            heapq.heappop(self._heap)
        return None

    def _best_of_window(self) -> Sequence | None:
        """Of the first few by key, the one that the order prefers now; of equals the first."""
        self._window = [entry for entry in self._window if entry[1] in self._waiting]
        while len(self._window) < self.order.window and self._head() is not None:
            self._window.append(heapq.heappop(self._heap))
        line = [self._waiting[ticket] for _, ticket in self._window]
        return max(line, key=self.order.preference, default=None)


def _ticket(sequence: Sequence) -> int:
    if sequence.ticket is None:
        raise InternalError(f"request {sequence.request_id} has never joined the queue")
    return sequence.ticket
