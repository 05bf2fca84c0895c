"""Rows of the list of known faults of serving engines that the scheduler answers for. Block size 4."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import numpy as np
import pytest

from kvbench.cache.content import Content
from kvbench.cache.transfers import Transfers
from kvbench.engine.batch import StepBatch
from kvbench.engine.loop import EngineLoop
from kvbench.engine.policies.registry import ADMISSION_POLICIES, VICTIM_POLICIES
from kvbench.engine.telemetry import StepRecord
from tests.engine.fakes import FakeRunner, by_id, fake_engine, honest_output, job, run
from tests.engine.naive_manager import NaiveManager

BOTH = pytest.mark.parametrize("manager", ["naive", "real"])


def stem(length: int, first: int = 500) -> list[int]:
    return [(first + 3 * at) % 1000 for at in range(length)]


def totals(steps: list[StepRecord]) -> dict[str, int]:
    names = ("admissions", "preemptions", "prefill_tokens", "decode_tokens", "prefix_cache_hits", "readmission_hits")
    return {name: sum(getattr(step, name) for step in steps) for name in names}


def pieces(engine: EngineLoop) -> list[list[int]]:
    """Query lengths of the prefill pieces of every step so far."""
    assert isinstance(engine.runner, FakeRunner)
    return [batch.query_lengths[batch.num_decodes :].tolist() for batch in engine.runner.batches]


@BOTH
def test_e12_a_fully_cached_prompt_still_computes_its_last_block(manager: str) -> None:
    """Prompt 8, fully cached: 4 tokens are hits, 4 are computed, and a later 12-token prompt still hits."""
    engine = fake_engine(8, manager=manager, prefix_cache="hash")
    run(engine, job(0, stem(8)), job(1, stem(4, first=0)))
    (again,) = run(engine, job(2, stem(8)))
    assert (again.prefix_cache_hits, again.prefill_tokens) == (4, 4)
    (longer,) = run(engine, job(3, stem(12)))
    assert (longer.prefix_cache_hits, longer.prefill_tokens) == (8, 4)


@BOTH
@pytest.mark.parametrize("policy", ["static", "continuous", "chunked"])
def test_e14_two_requests_that_count_the_same_hit_are_not_both_let_in(manager: str, policy: str) -> None:
    """Pool 4, two cached blocks. A needs them and one more, B needs them and two more: B waits, nothing breaks."""
    engine = fake_engine(4, manager=manager, prefix_cache="hash", batch_policy=policy)
    run(engine, job(0, stem(9)))
    a, b = job(1, [*stem(8), 1, 2, 3]), job(2, [*stem(8), 4, 5, 6, 7, 8])
    steps = run(engine, a, b)
    assert [step.admissions for step in steps] == [1, 1]
    assert engine.take_outputs()[2] == honest_output(b)


@BOTH
def test_e15_hits_cost_no_compute_budget(manager: str) -> None:
    """Budget 8; two prompts of 16 tokens with 12 cached: both are computed in one step."""
    engine = fake_engine(12, manager=manager, prefix_cache="hash", batch_policy="continuous", max_batch_tokens=8)
    run(engine, job(0, stem(13)))
    (step,) = run(engine, job(1, [*stem(12), 1, 2, 3, 4]), job(2, [*stem(12), 5, 6, 7, 8]))
    assert (step.admissions, step.prefill_tokens, step.prefix_cache_hits) == (2, 8, 24)


def preempt_the_second_at_six_tokens(manager: str, **more: str) -> tuple[EngineLoop, list[StepRecord]]:
    """Pool 4. A (7 tokens) needs its third block when B (4 tokens, 2 generated) has six."""
    engine = fake_engine(4, manager=manager, **more)  # type: ignore[arg-type]
    return engine, run(engine, job(0, stem(7), output=4), job(1, stem(4, first=0), output=6))


@BOTH
def test_e17_a_readmission_schedules_its_tokens_minus_the_hits(manager: str) -> None:
    """Preempted after 6 tokens, readmitted with 1 hit block: 2 tokens are scheduled, not 6, and none past the end."""
    engine, _ = preempt_the_second_at_six_tokens(manager, prefix_cache="hash")
    assert [step for step in pieces(engine) if step] == [[7, 4], [2]]
    record = by_id(engine)[1]
    assert (record.preemptions, record.recomputed_tokens, record.output_tokens) == (1, 1, 6)


@BOTH
def test_e19_hits_of_a_readmission_are_counted_apart(manager: str) -> None:
    """Random prompts; the preempted one hits its own block: hit rate 0, the re-hit in its own columns."""
    _, steps = preempt_the_second_at_six_tokens(manager, prefix_cache="hash")
    assert sum(step.prefix_cache_hits for step in steps) == 0
    assert sum(step.prefix_cache_queries for step in steps) == 7 + 4
    assert sum(step.readmission_hits for step in steps) == 4
    assert sum(step.readmission_queries for step in steps) == 6


@BOTH
@pytest.mark.parametrize("policy", ["static", "continuous", "chunked"])
def test_e26_what_can_never_fit_is_rejected_at_once(manager: str, policy: str) -> None:
    """Pool 4; A = 20 tokens then C = 4: A is rejected with an error, C runs."""
    engine = fake_engine(4, manager=manager, batch_policy=policy)
    steps = run(engine, job(0, 20), job(2, 4))
    records = by_id(engine)
    assert (records[0].finish_reason, records[0].output_tokens, records[0].e2e_s) == ("rejected", 0, None)
    assert records[0].error == "20 input + 1 output tokens can never fit into the pool of 4 blocks of 4 tokens"
    assert records[2].finish_reason == "length"
    assert len(steps) == 1


def test_e26_more_than_the_maximum_context_is_rejected_with_the_arithmetic() -> None:
    engine = fake_engine(100, max_context=16)
    run(engine, job(0, 10, output=7), job(1, 10, output=6))
    records = by_id(engine)
    assert records[0].error == "10 input + 7 output tokens exceed the maximum context of 16"
    assert records[1].finish_reason == "length"


@BOTH
@pytest.mark.parametrize("admission", ADMISSION_POLICIES)
def test_e27_demand_exactly_equal_to_capacity_is_admitted(manager: str, admission: str) -> None:
    """16 slots: 16 prompt tokens and one output fit (the last output's KV is never stored), 17 do not."""
    engine = fake_engine(4, manager=manager, admission=admission)
    run(engine, job(0, 16, output=1), job(1, 10, output=7), job(2, 10, output=8))
    records = by_id(engine)
    assert [records[i].finish_reason for i in range(3)] == ["length", "length", "rejected"]
    assert records[1].allocated_blocks == 4


@BOTH
@pytest.mark.parametrize("admission", ADMISSION_POLICIES)
def test_e28_a_prompt_waits_for_room_for_all_of_it(manager: str, admission: str) -> None:
    """Pool 8; A decodes and holds 5; B has 24 tokens, chunks of 8: B waits, is prefilled once, nobody is preempted."""
    engine = fake_engine(8, manager=manager, max_batch_tokens=9, admission=admission)
    engine.add(job(0, 17, output=4))
    steps = [engine.step()]
    engine.add(job(1, 24))
    found = [step for step in [*steps, *run(engine)] if step]
    assert totals(found)["preemptions"] == 0
    assert totals(found)["prefill_tokens"] == 17 + 24
    assert [step.active_sequences for step in found] == [1, 1, 1, 1, 1, 1, 1, 1]
    assert by_id(engine)[0].e2e_s == 5


@BOTH
@pytest.mark.parametrize("admission", ADMISSION_POLICIES)
def test_e29_two_half_computed_prompts_never_wait_for_each_other(manager: str, admission: str) -> None:
    """Pool 8; A and B need 7 blocks each, a chunk is 3: only one starts, both finish."""
    engine = fake_engine(8, manager=manager, max_batch_tokens=12, admission=admission)
    steps = run(engine, job(0, 28), job(1, 28))
    assert max(step.active_sequences for step in steps) == 1
    assert totals(steps)["preemptions"] == 0
    assert totals(steps)["prefill_tokens"] == 56


def test_e29_two_requests_with_blocks_on_the_host_never_wait_for_each_other() -> None:
    """Pool 8; A and B need 7 blocks each, 3 of them loaded from the host: only one load starts."""
    engine = fake_engine(8, manager="real", host_blocks=16, prefix_cache="hash", max_batch_tokens=64)
    a, b = stem(13, first=0), stem(13, first=200)
    run(engine, job(0, a), job(1, b))
    run(engine, job(2, 32))
    assert engine.manager.stats().host_blocks_used >= 6
    jobs = [job(3, [*a[:12], *stem(16, 700)]), job(4, [*b[:12], *stem(16, 800)])]
    steps = run(engine, *jobs)
    assert max(step.active_sequences for step in steps) == 1
    assert [step.host_promotions for step in steps] == [3, 3]
    assert [step.promotion_stall_s for step in steps] == [0.25, 0.25]
    assert engine.take_outputs()[4] == honest_output(jobs[1])


@BOTH
@pytest.mark.parametrize("policy", ["continuous", "chunked"])
@pytest.mark.parametrize("victim", VICTIM_POLICIES)
def test_e31_a_preemption_skips_nobody_who_runs(manager: str, policy: str, victim: str) -> None:
    """Five decode in a full pool and victims go, wherever they stand in the batch: in every step each survivor gets
    exactly one token."""
    engine = fake_engine(11, manager=manager, batch_policy=policy, victim=victim)
    for index in range(5):
        engine.add(job(index, 5 + index % 3, output=12, arrival_s=float(-index), priority=index % 2))
    preemptions = 0
    while engine.has_work:
        decoding = list(engine.scheduler.decoding.sequences)
        before = [sequence.output_tokens for sequence in decoding]
        step = engine.step()
        assert step is not None
        preemptions += step.preemptions
        for sequence, count in zip(decoding, before, strict=True):
            was_preempted = sequence.row is None and sequence.finish_reason is None
            assert sequence.output_tokens == count + (not was_preempted)
    assert preemptions > 0


@BOTH
def test_e31_the_victim_is_the_last_arrived_whatever_its_id_and_whatever_it_does(manager: str) -> None:
    """Pool 9, budget 3. Request 9 came first and decodes; 5 came last and is still prefilling when 9 needs a block."""
    engine = fake_engine(9, manager=manager, max_batch_tokens=3)
    run(engine, job(9, 3, output=8, arrival_s=-2.0), job(5, 28, output=1, arrival_s=-1.0))
    records = by_id(engine)
    assert (records[9].preemptions, records[5].preemptions) == (0, 1)
    assert records[9].e2e_s == 2 + 8


@BOTH
def test_a_late_joiner_that_arrived_earlier_stands_in_front(manager: str) -> None:
    """Request 1 arrived at 3 but is added after request 0, of arrival 5, decodes: the victim is 0."""
    engine = fake_engine(4, manager=manager)
    engine.add(job(0, 4, output=8, arrival_s=5.0))
    engine.step()
    run(engine, job(1, 4, output=8, arrival_s=3.0))
    assert [(record.request_id, record.preemptions) for record in engine.take_finished()] == [(1, 0), (0, 1)]


@BOTH
@pytest.mark.parametrize("policy", ["static", "continuous", "chunked"])
def test_e34_alone_in_a_full_pool_ends_with_an_error(manager: str, policy: str) -> None:
    """Someone else holds 2 of 4 blocks: the only sequence stops at its ninth slot, and its blocks are back."""
    engine = fake_engine(4, manager=manager, batch_policy=policy, max_sequences=4)
    outside = engine.manager.commit(engine.manager.plan(Content(np.arange(8)), 8))
    steps = run(engine, job(0, 4, output=8))
    record = by_id(engine)[0]
    assert (record.finish_reason, record.output_tokens, record.preemptions) == ("error", 5, 0)
    assert record.error == "no free block at token 9, and no other sequence to preempt"
    assert record.e2e_s is None
    assert len(steps) == 6
    engine.manager.release(outside.row)
    assert engine.manager.stats().blocks_used == 0


@BOTH
def test_e41_a_preempted_request_keeps_its_arrival_and_no_more(manager: str) -> None:
    """A is preempted while B, who arrived before A, waits: B is admitted first."""
    engine = fake_engine(4, manager=manager, max_sequences=2)
    engine.add(job(0, 7, output=7, arrival_s=-9.0))
    engine.add(job(1, 4, output=8, arrival_s=-1.0))
    engine.step()
    engine.add(job(2, 4, output=1, arrival_s=-5.0))
    steps = run(engine)
    assert [(step.preemptions, step.admissions) for step in steps[:3]] == [(0, 0), (1, 0), (0, 1)]
    ended = engine.take_finished()
    assert [record.request_id for record in ended] == [2, 0, 1]
    assert [record.preemptions for record in ended] == [0, 0, 1]
    assert [record.arrival_s for record in ended] == [-5.0, -9.0, -1.0]


@BOTH
def test_e45_a_recompute_resets_progress_and_counts_output_once(manager: str) -> None:
    """Prefill 8, 2 decodes, preempted, prefill again: 10 tokens are computed twice, 5 outputs counted once."""
    engine = fake_engine(6, manager=manager, max_sequences=4)
    outside = engine.manager.commit(engine.manager.plan(Content(np.arange(4)), 4))
    load = [job(0, 6, output=6), job(1, 8, output=5)]
    steps = run(engine, *load)
    record = by_id(engine)[1]
    assert (record.preemptions, record.output_tokens, record.recomputed_tokens) == (1, 5, 10)
    assert [step for step in pieces(engine) if step] == [[6, 8], [11]]
    assert sum(step.decode_tokens for step in steps) == 5 + 2 + 1
    assert engine.take_outputs() == {one.request_id: honest_output(one) for one in load}
    engine.manager.release(outside.row)


def test_e38_blocks_come_back_only_between_two_steps() -> None:
    """Preemptions, failures and ends under every policy: while a batch is in flight no row is released, so no block of
    a running step can be handed out again."""
    for policy in ("static", "continuous", "chunked"):
        engine = fake_engine(6, manager="real", batch_policy=policy)
        in_flight: list[bool] = []
        runner, forward, release = engine.runner, engine.runner.forward, engine.manager.release

        def watched_forward(batch: StepBatch, forward: Any = forward, in_flight: list[bool] = in_flight) -> Any:
            in_flight.append(True)
            logits = forward(batch)
            in_flight.pop()
            return logits

        def watched_release(row: int, release: Any = release, in_flight: list[bool] = in_flight) -> None:
            assert not in_flight, "a row was released under a running step"
            release(row)

        runner.forward, engine.manager.release = watched_forward, watched_release  # type: ignore[method-assign]
        steps = run(engine, *(job(index, 3 + index % 4, output=16) for index in range(8)))
        assert totals(steps)["preemptions"] > 0


class LateManager(NaiveManager):
    """Blocks of released rows come back two steps later, as if copies in them were under way."""

    def release(self, row: int) -> None:
        self.late = [*getattr(self, "late", []), [row, 2]]

    def deferred_blocks(self) -> int:
        return sum(len(self.rows[row].blocks) for row, _ in getattr(self, "late", []))

    def take_transfers(self) -> Transfers:
        """Called once a step."""
        late = getattr(self, "late", [])
        for entry in late:
            entry[1] -= 1
        self.late = [entry for entry in late if entry[1]]
        for row, left in late:
            if not left:
                super().release(row)
        return Transfers()


@pytest.mark.parametrize("policy", ["static", "continuous", "chunked"])
def test_e39_while_freed_blocks_are_on_their_way_nobody_else_is_preempted(policy: str) -> None:
    """Pool 9 is full with four that decode; whatever a victim frees comes two steps late. One preemption suffices
    for the block that was missing, those who need none go on, and nobody else is preempted meanwhile."""
    engine = fake_engine(9, manager="naive", batch_policy=policy, max_sequences=8)
    engine.manager.__class__ = LateManager
    load = [job(index, 7, output=3 + 2 * index) for index in range(4)]
    steps = run(engine, *load)
    first = next(at for at, step in enumerate(steps) if step.preemptions)
    assert [step.preemptions for step in steps[first : first + 2]] == [1, 0]
    assert totals(steps)["preemptions"] <= 2
    assert engine.take_outputs() == {one.request_id: honest_output(one) for one in load}


@BOTH
def test_e40_a_request_that_is_given_up_during_a_step_gets_its_token_once_or_not_at_all(manager: str) -> None:
    """Request 1 is aborted while the step that samples for it is in flight: the step ends as it was scheduled, then
    the request goes, its blocks come back, and the others are not disturbed."""
    engine = fake_engine(12, manager=manager, prefix_cache="hash")
    load = [job(index, 5 + index, output=6) for index in range(3)]
    forward, seen = engine.runner.forward, []

    def forward_and_abort(batch: StepBatch) -> Any:
        seen.append(batch)
        if len(seen) == 3:
            engine.abort(1)
        return forward(batch)

    engine.runner.forward = forward_and_abort  # type: ignore[method-assign]
    run(engine, *load)
    records, outputs = by_id(engine), engine.take_outputs()
    assert (records[1].finish_reason, records[1].error) == ("error", "aborted")
    assert outputs[1] == honest_output(load[1])[: records[1].output_tokens]
    assert records[1].output_tokens == 3
    assert {index: outputs[index] for index in (0, 2)} == {index: honest_output(load[index]) for index in (0, 2)}
    assert engine.manager.stats().blocks_used == 0


@BOTH
@pytest.mark.parametrize("policy", ["static", "continuous", "chunked"])
def test_e71_without_a_host_tier_preemption_recomputes_and_everyone_finishes(manager: str, policy: str) -> None:
    """Eight requests whose outputs outgrow a pool of 6 blocks: preempted many times, never stuck."""
    engine = fake_engine(6, manager=manager, batch_policy=policy)
    load = [job(index, 3 + index % 4, output=16) for index in range(8)]
    steps = run(engine, *load)
    assert totals(steps)["preemptions"] > 0
    assert engine.take_outputs() == {one.request_id: honest_output(one) for one in load}


def test_e76_a_readmission_consults_the_host_tier_again() -> None:
    """Pool 4 with a host tier: the preempted request's blocks were evicted to the host and come back from there."""
    engine = fake_engine(4, manager="real", host_blocks=8, prefix_cache="hash")
    load = [job(0, stem(7), output=10), job(1, stem(4, first=0), output=6)]
    steps = run(engine, *load)
    assert sum(step.preemptions for step in steps) == 1
    assert sum(step.host_promotions for step in steps) == 1
    assert totals(steps)["readmission_hits"] == 4
    assert sum(step.host_offload_bytes for step in steps) > 0
    assert engine.take_outputs() == {one.request_id: honest_output(one) for one in load}


@pytest.mark.parametrize("policy", ["static", "continuous", "chunked"])
def test_e70_the_arrays_of_a_step_are_not_written_again_by_later_ones(policy: str) -> None:
    """A device may still be reading the block tables of a step while the next one is prepared: every array of every
    batch, at the end of a run with preemptions, is what it was when its step began."""
    engine = fake_engine(9, manager="real", batch_policy=policy, prefix_cache="hash")
    forward, seen = engine.runner.forward, []

    def remembering_forward(batch: StepBatch) -> Any:
        seen.append((batch, deepcopy(batch)))
        return forward(batch)

    engine.runner.forward = remembering_forward  # type: ignore[method-assign]
    steps = run(engine, *(job(index, 3 + index % 4, output=14) for index in range(7)))
    assert totals(steps)["preemptions"] > 0
    for batch, then in seen:
        for name in ("token_ids", "positions", "slots", "block_tables", "query_starts", "context_lengths"):
            assert np.array_equal(getattr(batch, name), getattr(then, name)), name
