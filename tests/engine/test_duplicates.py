"""A prefix that several requests need at once is computed once."""

from __future__ import annotations

import numpy as np
import pytest

from kvbench.engine.batch import StepBatch
from kvbench.engine.duplicates import computed_by, shared_tokens
from kvbench.engine.job import Job
from kvbench.engine.sequence import Sequence
from tests.engine.fakes import by_id, fake_engine, honest_output, job, run

BOTH = pytest.mark.parametrize("manager", ["naive", "real"])
JOINING = pytest.mark.parametrize("policy", ["continuous", "chunked"])
STEM = [(500 + 3 * at) % 1000 for at in range(40)]


def asked(request_id: int, own: list[int], output: int = 3, **more: object) -> Job:
    return job(request_id, [*STEM, *own], output=output, **more)


@BOTH
@JOINING
def test_eight_identical_prompts_at_once_compute_their_prefix_once(manager: str, policy: str) -> None:
    """42 tokens, 40 of them in whole blocks: 42 + 7 · 2 are computed instead of 8 · 42, with the same answer."""
    found = {}
    for deduplicate in (False, True):
        engine = fake_engine(
            200, manager=manager, prefix_cache="hash", deduplicate_prefixes=deduplicate, batch_policy=policy
        )
        load = [asked(at, [1, 2]) for at in range(8)]
        steps = run(engine, *load)
        assert engine.take_outputs() == {one.request_id: honest_output(one) for one in load}
        found[deduplicate] = sum(step.prefill_tokens for step in steps)
    assert found == {False: 8 * 42, True: 42 + 7 * 2}


@BOTH
@JOINING
def test_e33_who_waits_for_blocks_that_others_compute_takes_no_seat(manager: str, policy: str) -> None:
    """Two seats. Request 0 computes a long prefix, 1 and 2 wait for it: request 3 takes the second seat."""
    engine = fake_engine(
        100, manager=manager, prefix_cache="hash", deduplicate_prefixes=True, batch_policy=policy,
        max_sequences=2, max_batch_tokens=64,
    )  # fmt: skip
    load = [asked(0, [1], output=9), asked(1, [2]), asked(2, [3]), job(3, 6, output=2)]
    run(engine, *load)
    assert engine.take_outputs() == {one.request_id: honest_output(one) for one in load}
    records = by_id(engine)
    assert records[3].ttft_s < records[1].ttft_s  # type: ignore[operator]
    assert records[1].cached_tokens == records[2].cached_tokens == 40
    assert records[1].passed_over >= 1


@BOTH
def test_it_waits_only_until_the_common_blocks_are_there(manager: str) -> None:
    """Request 0 goes on for 60 tokens after the common 40, in pieces of 10: request 1 joins after four of them."""
    engine = fake_engine(100, manager=manager, prefix_cache="hash", deduplicate_prefixes=True, max_batch_tokens=10)
    load = [job(0, [*STEM, *range(60)], output=2), asked(1, [700])]
    steps = run(engine, *load)
    assert [step.admissions for step in steps].index(1, 1) <= 10
    assert by_id(engine)[1].cached_tokens == 40


@BOTH
@pytest.mark.parametrize("end", ["abort", "preempt"])
def test_nobody_waits_for_one_that_has_gone(manager: str, end: str) -> None:
    """The request that computes leaves between being scheduled and being computed: those who waited go on alone."""
    engine = fake_engine(100, manager=manager, prefix_cache="hash", deduplicate_prefixes=True)
    load = [asked(0, [1]), asked(1, [2]), asked(2, [3])]
    for one in load:
        engine.add(one)
    engine.scheduler.schedule(0.0)
    assert (engine.scheduler.num_running, engine.scheduler.waiting.has_parked) == (1, True)
    if end == "abort":
        engine.abort(0)
    else:
        engine.scheduler.preempting.preempt(engine.scheduler.prefilling[0])
    assert not engine.scheduler.waiting.has_parked
    run(engine)
    outputs = engine.take_outputs()
    kept = load[1:] if end == "abort" else load
    assert {one.request_id: outputs[one.request_id] for one in kept} == {
        one.request_id: honest_output(one) for one in kept
    }
    engine.check_invariants()


@BOTH
def test_one_that_is_aborted_while_it_waits_for_another_is_gone(manager: str) -> None:
    engine = fake_engine(100, manager=manager, prefix_cache="hash", deduplicate_prefixes=True)
    for one in (asked(0, [1]), asked(1, [2]), asked(2, [3])):
        engine.add(one)
    forward = engine.runner.forward

    def forward_and_abort(batch: StepBatch) -> object:
        engine.runner.forward = forward  # type: ignore[method-assign]
        engine.scheduler.abort(next(s for s in engine.scheduler.waiting if s.request_id == 1))
        return forward(batch)

    engine.runner.forward = forward_and_abort  # type: ignore[method-assign]
    run(engine)
    records = by_id(engine)
    assert sorted(records) == [0, 2]
    assert records[2].cached_tokens == 40


@BOTH
def test_waiting_for_another_is_bounded(manager: str) -> None:
    """Request 1 waits for a prefix while short ones pass it in the same step; after three it computes for itself."""
    engine = fake_engine(
        200, manager=manager, prefix_cache="hash", deduplicate_prefixes=True, max_batch_tokens=120, starvation_limit=3
    )
    load = [asked(0, [1]), asked(1, [2]), *(job(at, 2, output=1) for at in range(2, 12))]
    run(engine, *load)
    record = by_id(engine)[1]
    assert record.passed_over == 3
    assert record.cached_tokens < 40


def test_different_salts_and_last_tokens_are_not_waited_for() -> None:
    def sequence(tokens: list[int], salt: str | None = None) -> Sequence:
        return Sequence(Job(0, np.array(tokens, np.int32), 1, salt=salt))

    a, b = sequence(STEM[:8]), sequence(STEM[:9])
    assert shared_tokens(a, b, 4) == 4
    assert shared_tokens(b, a, 4) == 8
    assert shared_tokens(b, sequence(STEM[:8], "tenant"), 4) == 0
    assert shared_tokens(sequence([1]), sequence([1]), 4) == 0
    assert shared_tokens(b, sequence([*STEM[:5], 0, 0, 0]), 4) == 4
    assert computed_by(b, 8, [a], 4) is None
    assert computed_by(b, 4, [a], 4) == (a, 8)
    a.prefilled = 8
    assert computed_by(b, 4, [a], 4) is None
