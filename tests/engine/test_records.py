"""What the records say of times and tokens, on a clock where every step takes one second."""

from __future__ import annotations

import numpy as np
import pytest

from kvbench.engine.job import Job
from kvbench.engine.keys import mix, request_key, token_keys
from kvbench.engine.recorder import gaps_between
from kvbench.errors import UsageError
from tests.engine.fakes import VOCAB, FakeRunner, ManualClock, by_id, fake_engine, honest_output, job, run


def test_m30_latency_counts_from_the_scheduled_arrival_and_queueing_has_its_own_column() -> None:
    """64 requests at once, 8 seats, two steps each: wave w waits 2w seconds, then prefills and decodes for 1 each."""
    engine = fake_engine(64, batch_policy="continuous", max_sequences=8)
    run(engine, *(job(i, 4, output=2) for i in range(64)))
    for request_id, record in by_id(engine).items():
        wait = 2.0 * (request_id // 8)
        assert (record.queue_time_s, record.prefill_time_s, record.decode_time_s) == (wait, 1.0, 1.0)
        assert (record.ttft_s, record.e2e_s) == (wait + 1, wait + 2)


def test_m30_a_late_start_is_charged_to_the_request() -> None:
    """Arrived at 2, added at 5: the three seconds in between are queueing."""
    engine = fake_engine(8)
    engine.clock.wait_until(5.0)
    run(engine, job(0, 4, output=1, arrival_s=2.0))
    record = by_id(engine)[0]
    assert (record.queue_time_s, record.ttft_s, record.e2e_s) == (3.0, 4.0, 4.0)


def test_m31_a_request_that_stops_early_is_measured_by_the_tokens_it_produced() -> None:
    """Asked for 50, stopped by its third token: two gaps, none of them the TTFT of 4 s, TPOT their mean."""
    engine = fake_engine(32)
    assert isinstance(engine.runner, FakeRunner)
    stop = honest_output(job(0, 5, output=3))[2]
    engine.add(job(0, 5, output=50, stop_tokens=frozenset({stop})))
    for seconds in (4.0, 1.0, 2.0):
        engine.runner.step_s = seconds
        engine.step()
    assert not engine.has_work
    record = by_id(engine)[0]
    assert (record.finish_reason, record.output_tokens) == ("stop", 3)
    assert (record.ttft_s, record.itl_s, record.tpot_s) == (4.0, [1.0, 2.0], 1.5)


@pytest.mark.parametrize(
    ("times", "gaps"),
    [
        ([3.0, 4.5, 4.5, 4.5, 5.0], [0.5, 0.5, 0.5, 0.5]),
        ([3.0, 3.0, 4.0], [0.0, 1.0]),
        ([3.0, 3.0, 3.0], [0.0, 0.0]),
        ([3.0, 4.0, 6.0], [1.0, 2.0]),
        ([3.0], []),
        ([], []),
    ],
)
def test_m31_tokens_that_came_together_share_their_gap_equally(times: list[float], gaps: list[float]) -> None:
    """Speculation emits three at once after 1.5 s: 0.5 s each. The gaps always add up to the decode time."""
    assert gaps_between(times) == gaps
    assert sum(gaps) == (times[-1] - times[0] if times else 0.0)


def test_m31_one_output_token_has_no_gap_and_no_tpot() -> None:
    engine = fake_engine(32)
    run(engine, job(0, 5, output=1))
    record = by_id(engine)[0]
    assert (record.itl_s, record.tpot_s, record.decode_time_s) == ([], None, 0.0)


@pytest.mark.parametrize("policy", ["static", "continuous", "chunked"])
def test_m32_exactly_the_requested_tokens_are_processed(policy: str) -> None:
    engine = fake_engine(2600, max_context=10_100, batch_policy=policy, max_batch_tokens=768)
    steps = run(engine, job(0, 10_000, output=3))
    assert sum(step.prefill_tokens for step in steps) == 10_000
    assert sum(step.decode_tokens for step in steps) == 2
    assert [step.context_tokens for step in steps][-2:] == [10_001, 10_002]
    assert by_id(engine)[0].input_tokens == 10_000


def test_a_step_record_counts_blocks_slots_and_bytes_as_they_stood_in_the_step() -> None:
    """5 prompt tokens and then one more: 2 blocks of 4, of 64 bytes each, with 3 and 2 slots empty."""
    engine = fake_engine(10)
    steps = run(engine, job(0, 5, output=2))
    assert [step.t_s for step in steps] == [0.0, 1.0]
    for step, tokens in zip(steps, (5, 6), strict=True):
        assert step.duration_s == 1.0
        assert (step.kv_blocks_total, step.kv_blocks_free) == (10, 8)
        assert (step.kv_capacity_bytes, step.kv_bytes_used) == (640, 128)
        assert (step.live_cached_tokens, step.internal_slots) == (tokens, 8 - tokens)
        assert (step.active_sequences, step.waiting_sequences) == (1, 0)


def test_counters_are_per_step_and_start_anew_after_a_reset() -> None:
    engine = fake_engine(4, manager="real", prefix_cache="hash")
    for _ in range(2):
        first = run(engine, job(0, 9), job(1, 9))
        again = run(engine, job(2, 9), job(3, 9))
        assert sum(step.evictions for step in first + again) == engine.manager.stats().evictions > 0
        assert sum(step.prefix_cache_queries for step in first) == 18
        engine.reset()
        assert engine.steps == 0
        assert engine.manager.stats().blocks_cached == 0
        assert engine.take_finished() == []


def test_forced_outputs_are_appended_whatever_the_model_says() -> None:
    engine = fake_engine(16)
    forced = np.array([3, 1, 4, 1, 5, 9], np.int32)
    run(engine, job(0, 5, output=5, forced=forced), job(1, 6, output=4))
    assert engine.take_outputs() == {0: [3, 1, 4, 1, 5], 1: honest_output(job(1, 6, output=4))}


def test_sampling_keys_depend_on_seed_request_and_output_index_alone() -> None:
    """The keys of every request are the same in a large batch and alone, and follow their own formula."""
    load = [job(i, 3 + i, output=4, seed=11) for i in range(4)]
    together = fake_engine(64, max_batch_tokens=5)
    run(together, *load)
    assert isinstance(together.runner, FakeRunner)
    seen = sorted(np.concatenate(together.runner.keys).tolist())
    expected = [mix(request_key(11, i) + index) for i in range(4) for index in range(4)]
    assert seen == sorted(np.array(expected, np.uint64).view(np.int64).tolist())
    assert len(set(seen)) == 16


def test_sampling_keys_go_on_where_they_stopped_after_a_preemption() -> None:
    """A pool of 6 blocks preempts; no output index is drawn twice, none is left out."""
    engine = fake_engine(6)
    steps = run(engine, *(job(i, 3, output=12, seed=2) for i in range(4)))
    assert sum(step.preemptions for step in steps) > 0
    assert isinstance(engine.runner, FakeRunner)
    seen = np.concatenate(engine.runner.keys).view(np.uint64).tolist()
    assert sorted(seen) == sorted(mix(request_key(2, i) + index) for i in range(4) for index in range(12))


def test_aborting_the_last_member_that_runs_ends_a_static_batch() -> None:
    engine = fake_engine(12, batch_policy="static")
    engine.add(job(0, 9, output=1))
    engine.add(job(1, 4, output=9))
    engine.step()
    assert engine.manager.stats().blocks_used == 4
    engine.abort(1)
    assert engine.manager.stats().blocks_used == 0


def test_token_keys_of_the_array_and_of_the_integer_agree() -> None:
    keys = [0, 1, 2**63, 2**64 - 1, 12345678901234567890]
    found = token_keys(np.array(keys, np.uint64), np.arange(5))
    assert found.view(np.uint64).tolist() == [mix(key + index) for index, key in enumerate(keys)]


@pytest.mark.parametrize("policy", ["static", "continuous", "chunked"])
def test_an_aborted_request_leaves_nothing_behind_wherever_it_was(policy: str) -> None:
    """Abort the running, the prefilling and the waiting one between any two steps; the others get their tokens."""
    for steps in range(6):
        for victim in range(4):
            engine = fake_engine(12, batch_policy=policy, max_batch_tokens=6, max_sequences=3)
            load = [job(i, 7, output=7) for i in range(4)]
            for one in load:
                engine.add(one)
            for _ in range(steps):
                engine.step()
            engine.abort(victim)
            engine.check_invariants()
            run(engine)
            record, outputs = by_id(engine)[victim], engine.take_outputs()
            assert (record.finish_reason, record.error) == ("error", "aborted")
            assert outputs[victim] == honest_output(load[victim])[: record.output_tokens]
            assert all(outputs[one.request_id] == honest_output(one) for one in load if one.request_id != victim)
            assert engine.manager.stats().blocks_used == 0


def test_abort_of_an_unknown_request_and_a_double_id_are_usage_errors() -> None:
    engine = fake_engine(10)
    engine.add(job(0, 4))
    with pytest.raises(UsageError, match="request 0 is already being served"):
        engine.add(job(0, 4))
    with pytest.raises(UsageError, match="request 7 is not being served"):
        engine.abort(7)
    with pytest.raises(UsageError, match="still serving"):
        engine.reset()


@pytest.mark.parametrize(
    ("prompt", "more", "message"),
    [
        ([], {}, "the prompt is empty"),
        ([1], {"output": 0}, "max_tokens is 0"),
        ([1], {"output": 3, "forced": np.array([1, 2])}, "2 forced tokens for an output of 3"),
        ([-1], {}, "outside the vocabulary"),
        ([VOCAB], {}, "outside the vocabulary"),
    ],
)
def test_a_malformed_job_is_a_usage_error(prompt: list[int], more: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        fake_engine(10).add(job(0, prompt, **more))  # type: ignore[arg-type]


def test_an_idle_engine_steps_to_nothing() -> None:
    assert fake_engine(4).step() is None


def test_a_job_knows_how_many_slots_it_needs_at_its_longest() -> None:
    assert Job(0, np.arange(10, dtype=np.int32), 5).slots_needed == 14
    assert ManualClock().now() == 0.0


def test_prefix_lookup_s_is_the_time_spent_on_admission_plans_and_nothing_else() -> None:
    """A clock for plans alone, on which reading the time takes a second: a step's look-ups are its plans."""
    engine = fake_engine(64, prefix_cache="hash", batch_policy="continuous", max_sequences=2)
    readings = iter(range(10_000))
    engine.scheduler.seating.timer = lambda: float(next(readings))
    plans: list[int] = [0]
    plan = engine.manager.plan

    def counted(*given: object, **named: object) -> object:
        plans[0] += 1
        return plan(*given, **named)  # type: ignore[arg-type]

    engine.manager.plan = counted  # type: ignore[method-assign, assignment]
    for one in (job(0, 4, output=3), job(1, 6, output=2), job(2, 5, output=1)):
        engine.add(one)
    seen = []
    while engine.has_work:
        before = plans[0]
        record = engine.step()
        assert record is not None
        assert record.prefix_lookup_s == plans[0] - before
        assert record.prefix_lookup_s >= record.admissions
        seen.append(record.prefix_lookup_s)
    assert sum(seen) == plans[0] >= 3
    assert 0.0 in seen
