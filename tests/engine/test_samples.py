"""n outputs of one prompt: the tokens of n separate requests, with the prompt computed and held once."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbench.cache.types import Int64s
from kvbench.engine.job import Job
from kvbench.engine.keys import mix
from kvbench.engine.loop import EngineLoop
from kvbench.engine.sampling import SamplingParams
from tests.engine.branches import assert_nothing_is_held, prompts, serve_all, small_engines
from tests.engine.fakes import VOCAB, FakeRunner, by_id, fake_engine, job, run

STOPS = frozenset(range(0, VOCAB, 9))
HOT = SamplingParams(1.0)


def drawing(engine: EngineLoop) -> EngineLoop:
    """The engine with a device whose tokens depend on the key as well: samples of one prompt part."""
    assert isinstance(engine.runner, FakeRunner)
    plain = engine.runner.sample

    def sample(logits: list[int], params: list[SamplingParams], keys: Int64s) -> Int64s:
        tokens = plain(logits, params, keys)
        drawn = [mix(int(token) ^ (int(key) & 0xFFFF)) % VOCAB for token, key in zip(tokens, keys, strict=True)]
        return np.array(drawn, np.int64)

    engine.runner.sample = sample  # type: ignore[method-assign]
    return engine


def each_alone(one: Job) -> list[list[int]]:
    """The samples as separate requests with the same keys, in an engine with room for all."""
    found = []
    for at in range(one.n):
        engine = drawing(fake_engine(200, manager="real"))
        run(engine, replace(one, n=1, sample=at))
        found.append(engine.take_outputs()[one.request_id])
    return found


@st.composite
def loads(draw: st.DrawFn) -> list[Job]:
    return [
        Job(
            request_id=request_id,
            prompt=np.array(draw(prompts()), np.int32),
            max_tokens=draw(st.integers(1, 12)),
            stop_tokens=STOPS if draw(st.booleans()) else frozenset(),
            sampling=HOT,
            arrival_s=float(draw(st.integers(0, 9))),
            seed=3,
            n=draw(st.sampled_from([1, 2, 4])),
        )
        for request_id in range(draw(st.integers(1, 5)))
    ]


@settings(max_examples=80, deadline=None)
@given(engine=small_engines(), load=loads())
def test_samples_are_those_of_separate_requests_under_every_policy(engine: EngineLoop, load: list[Job]) -> None:
    steps = serve_all(drawing(engine), load)
    assert engine.settings.admission == "max-utilization" or not sum(step.preemptions for step in steps)
    records, outputs = by_id(engine), engine.take_all_outputs()
    for one in load:
        record = records[one.request_id]
        if record.finish_reason == "rejected":
            continue
        expected = each_alone(one)
        assert record.error is None
        assert outputs[one.request_id] == expected
        assert record.output_tokens == sum(map(len, expected))
        assert len(record.itl_s) == record.output_tokens - one.n
        all_stopped = all(output[-1] in one.stop_tokens for output in expected)
        assert record.finish_reason == ("stop" if all_stopped else "length")
    assert_nothing_is_held(engine)


def test_the_prompt_is_computed_once_and_its_full_blocks_are_held_once() -> None:
    """Prompt 9, four outputs of 4 tokens, blocks of 4: 2 shared blocks and 1 or 2 of each sample."""
    engine = drawing(fake_engine(40, manager="real"))
    steps = run(engine, job(0, 9, output=4, n=4, sampling=HOT))
    assert sum(step.prefill_tokens for step in steps) == 9
    assert [step.batch_size for step in steps] == [1, 4, 4, 4]
    assert [step.copy_on_write_copies for step in steps] == [0, 3, 0, 0]
    assert max(step.kv_bytes_used for step in steps) == 64 * (2 + 4)
    assert by_id(engine)[0].allocated_blocks == 6


def test_samples_count_as_sequences() -> None:
    """Seats for four: a request of three samples leaves one, also while its prompt is still computed in chunks."""
    engine = drawing(fake_engine(60, manager="real", max_sequences=4, max_batch_tokens=4))
    steps = run(engine, job(0, 9, output=4, n=3, sampling=HOT), job(1, 9, output=4, n=2, sampling=HOT), job(2, 2, 2))
    assert max(step.active_sequences for step in steps) <= 4
    first = [batch.num_sequences for batch in engine.runner.batches[:3]]  # type: ignore[attr-defined]
    assert first == [1, 1, 1]
    run(engine, job(3, 2, n=5))
    assert "max_sequences" in str(by_id(engine)[3].error)


def test_a_promise_for_all_samples_is_enough_for_all_samples() -> None:
    one = job(0, 6, output=9, n=4, sampling=HOT)
    most = 4 + 3 * 3
    for pool, fits in ((most, True), (most - 1, False)):
        engine = drawing(fake_engine(pool, manager="real", admission="guaranteed-no-evict"))
        steps = run(engine, one)
        assert (by_id(engine)[0].finish_reason == "length") == fits
        assert sum(step.preemptions for step in steps) == 0


def test_a_sample_is_a_victim_by_itself() -> None:
    """A pool that holds the samples one at a time only: all are preempted but one, and all come to their tokens."""
    one = job(0, 6, output=9, n=4, sampling=HOT)
    engine = drawing(fake_engine(4, manager="real"))
    steps = run(engine, one)
    record = by_id(engine)[0]
    assert sum(step.preemptions for step in steps) == record.preemptions > 0
    assert engine.take_all_outputs()[0] == each_alone(one)


def test_samples_in_flight_are_aborted_together() -> None:
    for steps in range(6):
        engine = drawing(fake_engine(9, manager="real", max_batch_tokens=4))
        engine.add(job(0, 6, output=6, n=4, sampling=HOT))
        for _ in range(steps):
            engine.step()
        engine.abort(0)
        engine.check_invariants()
        assert by_id(engine)[0].error == "aborted"
        assert_nothing_is_held(engine)


def test_the_first_sample_has_the_tokens_of_a_request_without_samples() -> None:
    alone, several = drawing(fake_engine(60, manager="real")), drawing(fake_engine(60, manager="real"))
    run(alone, job(0, 6, output=6))
    run(several, job(0, 6, output=6, n=3))
    assert several.take_all_outputs()[0][0] == alone.take_outputs()[0]


def test_e19_what_a_preempted_sample_finds_again_is_no_first_hit() -> None:
    """Two requests of four samples in a pool too small for all: forked samples lose their blocks, come back and find
    the prompt, which is a hit of a readmission and nothing that a cold workload has to explain."""
    engine = drawing(fake_engine(12, manager="real", prefix_cache="hash"))
    steps = run(engine, job(0, 9, output=12, n=4, sampling=HOT), job(1, 9, output=12, n=4, sampling=HOT))
    assert sum(step.preemptions for step in steps) > 0
    assert sum(step.readmission_hits for step in steps) > 0
    assert sum(step.prefix_cache_hits for step in steps) == 0
    assert sum(step.prefix_cache_queries for step in steps) == 2 * 9
