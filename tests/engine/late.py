"""The fake device with copies that take their time, and copies that fail and leave rubbish."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import numpy as np

from kvbench.cache.transfers import COPY_KINDS, MUST_BE_DONE, Transfers
from kvbench.engine.copies import Outcome
from tests.engine.fakes import FakeRunner

RUBBISH = -7
PLACES = {
    "demote": ("host", "disk"),
    "offload": ("memory", "host"),
    "swap_out": ("memory", "swap"),
    "store": ("memory", "host"),
    "promote": ("host", "memory"),
    "load": ("disk", "memory"),
    "swap_in": ("swap", "memory"),
    "copy": ("memory", "memory"),
}


@dataclass
class LateRunner(FakeRunner):
    """Copies that need not be done at once end `lag` polls later, in any order; each copy fails with probability
    `failing`. What is on its way lies as rubbish in its destination."""

    disk_blocks: int = 0
    swap_blocks: int = 0
    lag: int = 0
    failing: float = 0.0
    seed: int = 0
    under_way: list[tuple[int, str, int, int, np.ndarray | None]] = field(default_factory=list)
    failures: int = 0
    polls: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.random = random.Random(self.seed)
        self.disk = np.full((self.disk_blocks + 1, self.block_size), -1, np.int64)
        self.swap = np.full((self.swap_blocks + 1, self.block_size), -1, np.int64)
        self.keys_on_disk: dict[int, bytes] = {}

    def start(self, transfers: Transfers) -> Outcome:
        outcome = Outcome()
        self._check_keys(transfers)
        for kind in COPY_KINDS:
            here, there = transfers.pairs(kind)
            for source, destination in zip(here, there, strict=True):
                self._begin(kind, source, destination, outcome)
        return outcome

    def poll(self, *, wait: bool = False) -> Outcome:
        self.polls += 1
        outcome = Outcome()
        due = [job for job in self.under_way if job[0] <= self.polls]
        if wait and not due and self.under_way:
            due = [min(self.under_way, key=lambda job: job[0])]
            self.clock.time += 0.25
        for job in due:
            self.under_way.remove(job)
            self._end(*job[1:], outcome)
        return outcome

    def _begin(self, kind: str, source: int, destination: int, outcome: Outcome) -> None:
        here, there = (getattr(self, place) for place in PLACES[kind])
        writer = next(
            (job for job in self.under_way if PLACES[job[1]][1] == PLACES[kind][0] and job[3] == source), None
        )
        contents = here[source].copy() if writer is None else None
        if not self.lag or (kind in MUST_BE_DONE and kind != "demote"):
            self._end(kind, source, destination, contents, outcome)
            return
        there[destination] = RUBBISH
        ends = max(self.polls + self.random.randint(1, self.lag), writer[0] if writer else 0)
        self.under_way.append((ends, kind, source, destination, contents))

    def _end(self, kind: str, source: int, destination: int, contents: np.ndarray | None, outcome: Outcome) -> None:
        here, there = (getattr(self, place) for place in PLACES[kind])
        if contents is None:  # it was still being written when this began
            contents = here[source].copy()
        elif kind in ("store", "promote", "load", "swap_in"):
            assert (here[source] == contents).all(), f"the source of a {kind} was written while it was read"
        fails = self.random.random() < self.failing
        there[destination] = RUBBISH if fails else contents
        self.failures += fails
        sources, destinations = (outcome.failed if fails else outcome.done).pairs(kind)
        sources.append(source)
        destinations.append(destination)

    def _check_keys(self, transfers: Transfers) -> None:
        for place, key in zip(transfers.demote_disk, transfers.demote_keys, strict=True):
            self.keys_on_disk[place] = key
        for place, key in zip(transfers.load_disk, transfers.load_keys, strict=True):
            assert self.keys_on_disk[place] == key, "another's file is asked for"

    def reset(self) -> None:
        super().reset()
        self.under_way.clear()
