"""The queue in front of the engine: by arrival, ties by request id, a preempted sequence at its old place (E41)."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvbench.engine.sequence import Sequence


class WaitingQueue:
    """First come, first served."""

    def __init__(self) -> None:
        self._heap: list[tuple[tuple[float, int, int], Sequence]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def __iter__(self) -> Iterator[Sequence]:
        """In no particular order."""
        return (sequence for _, sequence in self._heap)

    def push(self, sequence: Sequence) -> None:
        heapq.heappush(self._heap, (sequence.order, sequence))

    def peek(self) -> Sequence:
        return self._heap[0][1]

    def pop(self) -> Sequence:
        return heapq.heappop(self._heap)[1]

    def remove(self, sequence: Sequence) -> None:
        """Aborted while it waited."""
        self._heap = [entry for entry in self._heap if entry[1] is not sequence]
        heapq.heapify(self._heap)
