"""Many scenarios in a row, in as many processes as asked for, until a budget is spent or something is found."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from multiprocessing import get_context

from kvbench.verify.draw import FAULT_RATE, draw_scenario
from kvbench.verify.play import Outcome, play

BATCH = 20
"""Scenarios between two looks at the budget"""


@dataclass(frozen=True, slots=True)
class Finding:
    """A scenario that failed, by its seed."""

    seed: int
    failure: str


@dataclass(slots=True)
class Tally:
    """What a campaign did."""

    scenarios: int = 0
    steps: int = 0
    faults: int = 0
    seconds: float = 0.0
    findings: list[Finding] = field(default_factory=list)

    def add(self, seed: int, outcome: Outcome) -> None:
        self.scenarios += 1
        self.steps += outcome.steps
        self.faults += outcome.faults
        if outcome.failure is not None:
            self.findings.append(Finding(seed, outcome.failure))


@dataclass(frozen=True, slots=True)
class Budget:
    """Whichever comes first ends the campaign; None does not limit."""

    steps: int | None = None
    seconds: float | None = None

    def is_spent(self, tally: Tally) -> bool:
        too_many = self.steps is not None and tally.steps >= self.steps
        return too_many or (self.seconds is not None and tally.seconds >= self.seconds)


def campaign(first_seed: int, budget: Budget, *, jobs: int = 1, fault_rate: float = FAULT_RATE) -> Iterator[Tally]:
    """Play seeds `first_seed`, +1, … and yield the tally after every batch; ends with the budget or a finding."""
    started, tally = time.monotonic(), Tally()
    outcomes = _here(first_seed, fault_rate) if jobs == 1 else _in_processes(first_seed, fault_rate, jobs)
    for batch in outcomes:
        for seed, outcome in batch:
            tally.add(seed, outcome)
        tally.seconds = time.monotonic() - started
        yield tally
        if tally.findings or budget.is_spent(tally):
            return


Batch = list[tuple[int, Outcome]]


def play_batch(first_seed: int, count: int, fault_rate: float) -> Batch:
    """Seeds [first_seed, first_seed + count), up to the first failure."""
    batch: Batch = []
    for seed in range(first_seed, first_seed + count):
        batch.append((seed, play(draw_scenario(seed, fault_rate))))
        if batch[-1][1].failure is not None:
            break
    return batch


def _here(seed: int, fault_rate: float) -> Iterator[Batch]:
    while True:
        yield play_batch(seed, BATCH, fault_rate)
        seed += BATCH


def _in_processes(seed: int, fault_rate: float, jobs: int) -> Iterator[Batch]:
    """The same seeds by several processes; batches come as they are finished."""
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        running: set[Future[Batch]] = set()
        try:
            while True:
                while len(running) < 2 * jobs:
                    running.add(pool.submit(play_batch, seed, BATCH, fault_rate))
                    seed += BATCH
                done, running = wait(running, return_when=FIRST_COMPLETED)
                yield from (future.result() for future in done)
        finally:
            for future in running:
                future.cancel()
