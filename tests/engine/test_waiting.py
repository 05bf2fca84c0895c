"""The queue in front of the engine: orders, bounded starvation, and places that outlast a preemption."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.engine.policies.registry import ORDERS, order_of
from kvbench.engine.sequence import Sequence
from kvbench.engine.waiting import WaitingQueue
from kvbench.errors import InternalError
from kvbench.spec.engine import EngineSettings
from tests.engine.fakes import by_id, cache_settings, fake_engine, job, run
from tests.engine.naive_manager import NaiveManager


class NaiveQueue:
    """A list in the order of joining, scanned from the front every time."""

    def __init__(self, order: str, limit: int) -> None:
        self.order, self.limit = order, limit
        self.joined: list[Sequence] = []
        self.waiting: list[Sequence] = []
        self.passed: dict[int, int] = {}

    def push(self, sequence: Sequence) -> None:
        if sequence not in self.joined:
            self.joined.append(sequence)
            self.passed[sequence.request_id] = 0
        self.waiting.append(sequence)

    def first(self) -> Sequence | None:
        line = sorted(self.waiting, key=self.joined.index)
        overdue = [sequence for sequence in line if self.passed[sequence.request_id] >= self.limit]
        return overdue[0] if overdue else min(line, key=self.key, default=None)

    def key(self, sequence: Sequence) -> tuple[float, ...]:
        job = sequence.job
        first = {"fcfs": 0, "priority": -job.priority, "shortest-first": len(job.prompt) + job.max_tokens}[self.order]
        return (first, job.arrival_s, job.request_id)

    def admit(self, sequence: Sequence) -> None:
        self.waiting.remove(sequence)
        for other in self.waiting:
            self.passed[other.request_id] += self.joined.index(other) < self.joined.index(sequence)


def make_queue(order: str, limit: int) -> WaitingQueue:
    manager = NaiveManager(cache_settings(EngineSettings(block_size=4), 8, 64))
    return WaitingQueue(order_of(order, manager), limit)


@given(
    order=st.sampled_from(["fcfs", "priority", "shortest-first"]),
    limit=st.integers(1, 5),
    moves=st.lists(st.tuples(st.sampled_from("paabr"), st.integers(0, 9), st.integers(0, 3)), max_size=60),
)
def test_the_queue_is_the_list_scanned_from_the_front(
    order: str, limit: int, moves: list[tuple[str, int, int]]
) -> None:
    """p: push a newcomer; a: admit the first; b: a running one comes back preempted; r: one that waits is aborted."""
    queue, naive, ids, running = make_queue(order, limit), NaiveQueue(order, limit), itertools.count(), []
    for move, number, priority in moves:
        if move == "p" or (move == "b" and running):
            new = Sequence(job(next(ids), 1 + number, 1, arrival_s=float(number % 3), priority=priority))
            sequence = new if move == "p" else running.pop(number % len(running))
            queue.push(sequence)
            naive.push(sequence)
        elif move == "a" and naive.waiting:
            sequence = queue.first()
            assert sequence is naive.first()
            assert sequence is not None
            queue.admit(sequence)
            naive.admit(sequence)
            running.append(sequence)
            assert sequence.passed_over == naive.passed[sequence.request_id]
        elif move == "r" and naive.waiting:
            sequence = naive.waiting.pop(number % len(naive.waiting))
            queue.remove(sequence)
        assert sorted(s.request_id for s in queue) == sorted(s.request_id for s in naive.waiting)
        assert queue.first() is naive.first()


def test_what_never_joined_cannot_be_admitted() -> None:
    with pytest.raises(InternalError, match="never joined"):
        make_queue("fcfs", 1).admit(Sequence(job(0, 3)))


def finish_order(order: str, *jobs: object, **settings: object) -> list[int]:
    """Request ids in the order of their first token, one seat."""
    engine = fake_engine(64, manager="real", max_sequences=1, order=order, **settings)
    run(engine, *jobs)  # type: ignore[arg-type]
    return [record.request_id for record in engine.take_finished()]


def test_each_order_serves_first_whom_it_names() -> None:
    load = [job(0, 9, 1), job(1, 5, 1, priority=2), job(2, 3, 1, priority=1), job(3, 5, 1, priority=2)]
    assert finish_order("fcfs", *load) == [0, 1, 2, 3]
    assert finish_order("priority", *load) == [1, 3, 2, 0]
    assert finish_order("shortest-first", *load) == [2, 1, 3, 0]


def test_longest_prefix_match_goes_by_what_the_cache_holds_now() -> None:
    """Request 3 continues the prompt of 0, request 4 that of 3: each becomes the best match as the one before ends."""
    stem = [7 * at % 997 for at in range(24)]
    load = [job(0, stem[:8]), job(1, 8), job(2, 8), job(3, stem[:16]), job(4, stem[:24])]
    assert finish_order("longest-prefix-match", *load, prefix_cache="hash") == [0, 3, 4, 1, 2]


def test_longest_prefix_match_looks_at_a_bounded_number_of_requests() -> None:
    """The best match is the 40th in line; it is not seen before eight others have gone."""
    stem = [7 * at % 997 for at in range(12)]
    load = [job(0, stem[:8]), *(job(at, 4) for at in range(1, 40)), job(40, stem)]
    order = finish_order("longest-prefix-match", *load, prefix_cache="hash", starvation_limit=1000)
    assert order == [0, *range(1, 9), 40, *range(9, 40)]


@pytest.mark.parametrize("order", ["priority", "shortest-first", "longest-prefix-match"])
def test_nobody_is_passed_over_more_often_than_the_limit_and_the_seats(order: str) -> None:
    """Request 0 is what every order likes least, and better ones keep coming: at the limit it goes first."""
    stem = [7 * at % 997 for at in range(8)]
    engine = fake_engine(64, manager="real", max_sequences=1, order=order, prefix_cache="hash", starvation_limit=5)
    run(engine, job(99, stem, 1, priority=1))
    engine.add(job(0, 40, 2))
    run(engine, *(job(at, [*stem, at], 1, priority=1) for at in range(1, 30)))
    records = engine.take_finished()
    place = [record.request_id for record in records].index(0)
    assert (place, records[place].passed_over) == (1 + 5, 5)
    assert max(record.passed_over for record in records) == 5


def test_a_preempted_request_keeps_its_place_under_every_order() -> None:
    """Pool 6: one of two that run is preempted while shorter and more important ones wait; the queue decides by the
    keys that they came with, and everybody ends."""
    for order in ORDERS:
        engine = fake_engine(6, manager="real", order=order, prefix_cache="hash", max_sequences=3)
        load = [job(at, 4 + at % 3, 9, arrival_s=float(-at), priority=at % 2) for at in range(7)]
        steps = run(engine, *load)
        assert sum(step.preemptions for step in steps) > 0
        assert {record.finish_reason for record in by_id(engine).values()} == {"length"}


def test_a_long_queue_is_no_burden() -> None:
    """Nothing in the queue is quadratic: this takes minutes if an admission walks the queue in Python."""
    queue, pick = make_queue("priority", 1000), random.Random(1)
    for number in range(20_000):
        queue.push(Sequence(job(number, 1, priority=pick.randrange(3))))
    admitted = 0
    while (sequence := queue.first()) is not None:
        queue.admit(sequence)
        admitted += 1
    assert admitted == 20_000
