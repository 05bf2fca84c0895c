"""Beam search: the tokens of a search without any cache, whatever the pool, the policy and who else is served."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbench.engine.beams import BeamParams, BeamSearch
from kvbench.engine.job import Job
from kvbench.engine.loop import EngineLoop
from kvbench.engine.sampling import SamplingParams
from kvbench.errors import UsageError
from tests.engine.branches import assert_nothing_is_held, naive_beam_search, prompts, serve_all, small_engines
from tests.engine.fakes import VOCAB, by_id, fake_candidates, fake_engine, honest_output, job, next_token, run

STOPS = frozenset(range(0, VOCAB, 9))


def honest_beams(one: Job) -> list[list[int]]:
    assert one.beams is not None
    count = max(2, 1 + len(one.stop_tokens)) * one.beams.width
    outputs, _ = naive_beam_search(
        lambda tokens: fake_candidates(next_token(tokens), count),
        one.prompt.tolist(),
        one.beams.width,
        one.max_tokens,
        stop=one.stop_tokens,
        length_penalty=one.beams.length_penalty,
        early_stopping=one.beams.early_stopping,
    )
    return outputs


@st.composite
def loads(draw: st.DrawFn) -> list[Job]:
    """Up to five requests, some of them searches, some with stop tokens."""
    made = []
    for request_id in range(draw(st.integers(1, 5))):
        width = draw(st.sampled_from([1, 2, 3, 4]))
        penalty, early = draw(st.sampled_from([0.0, 0.7, 1.0, 2.5])), draw(st.sampled_from([True, False, "never"]))
        made.append(
            Job(
                request_id=request_id,
                prompt=np.array(draw(prompts()), np.int32),
                max_tokens=draw(st.integers(1, 12)),
                stop_tokens=frozenset(draw(st.sets(st.sampled_from(sorted(STOPS)), max_size=3))),
                arrival_s=float(draw(st.integers(0, 9))),
                beams=BeamParams(width, penalty, early) if width > 1 else None,
            )
        )
    return made


@settings(max_examples=80, deadline=None)
@given(engine=small_engines(), load=loads())
def test_every_search_finds_what_a_search_without_cache_finds(engine: EngineLoop, load: list[Job]) -> None:
    steps = serve_all(engine, load)
    assert engine.settings.admission == "max-utilization" or not sum(step.preemptions for step in steps)
    records, outputs = by_id(engine), engine.take_all_outputs()
    for one in load:
        record = records[one.request_id]
        if record.finish_reason == "rejected":
            continue
        expected = [honest_output(one)] if one.beams is None else honest_beams(one)
        assert record.error is None
        assert outputs[one.request_id] == expected
        assert record.output_tokens == len(expected[0])
        assert record.finish_reason == ("stop" if expected[0][-1] in one.stop_tokens else "length")
    assert_nothing_is_held(engine)


def test_a_promise_for_all_beams_is_enough_for_all_beams() -> None:
    """guaranteed-no-evict in a pool of exactly the promise: nobody is preempted, and a block less is refused."""
    one = job(0, 6, output=9, beams=BeamParams(4))
    most = 4 + 3 * 3  # slots for 14 tokens in blocks of 4; each other beam shares one full block of them
    for pool, fits in ((most, True), (most - 1, False)):
        engine = fake_engine(pool, manager="real", admission="guaranteed-no-evict")
        steps = run(engine, one)
        assert (by_id(engine)[0].finish_reason == "length") == fits
        assert sum(step.preemptions for step in steps) == 0


def test_beams_share_the_prompt_and_a_search_holds_less_than_copies() -> None:
    """Prompt 70, 8 beams, 16 tokens: fewer blocks than eight requests, and no more than all beams apart."""
    engine = fake_engine(300, manager="real", block_size=4)
    beams = run(engine, job(0, 70, output=16, beams=BeamParams(8)))
    copies = run(engine, *(job(1 + at, 70, output=16) for at in range(8)))
    most, each = 17 + 8 * 5, 22
    assert max(step.kv_bytes_used for step in beams) <= most * 64
    assert max(step.kv_bytes_used for step in copies) == 8 * each * 64
    assert by_id(engine)[0].allocated_blocks == max(step.kv_bytes_used for step in beams) // 64


def test_e81_a_written_block_is_copied_once_and_dead_beams_return_their_blocks() -> None:
    """Three beams over a prompt of 6 (block 4): the shared tail is copied twice, the last owner writes in place; no
    step holds more than each beam's own blocks; after the search nothing is held, and the next one is not touched."""
    engine = fake_engine(40, manager="real")
    engine.add(job(0, 6, output=6, beams=BeamParams(3)))
    steps = []
    while engine.has_work:
        step = engine.step()
        assert step is not None
        steps.append(step)
    assert [step.copy_on_write_copies for step in steps[:2]] == [0, 2]
    assert all(step.kv_bytes_used <= 64 * (1 + 3 * 2) for step in steps)
    assert_nothing_is_held(engine)
    first = engine.take_all_outputs()
    run(engine, job(1, 6, output=6, beams=BeamParams(3)), job(0, 6, output=6, beams=BeamParams(3)))
    again = engine.take_all_outputs()
    assert again[0] == first[0]
    assert again[1] != first[0]


def test_a_search_is_preempted_whole_and_begins_again() -> None:
    """Pool 7. The search came last; when the first request grows, all beams go, and come back to the same result."""
    engine = fake_engine(7, manager="real")
    first, search = job(0, 11, output=9), job(1, 3, output=6, arrival_s=0.5, beams=BeamParams(2))
    steps = serve_all(engine, [first, search])
    assert sum(step.preemptions for step in steps) > 0
    record = by_id(engine)[1]
    assert record.preemptions > 0
    assert record.recomputed_tokens > 3
    assert engine.take_all_outputs()[1] == honest_beams(search)


def test_a_search_in_flight_is_aborted_whole() -> None:
    for steps in range(5):
        engine = fake_engine(40, manager="real", max_batch_tokens=4)
        engine.add(job(0, 6, output=6, beams=BeamParams(3)))
        for _ in range(steps):
            engine.step()
        engine.abort(0)
        engine.check_invariants()
        assert by_id(engine)[0].error == "aborted"
        assert_nothing_is_held(engine)


def test_times_of_a_search_are_those_of_its_steps() -> None:
    engine = fake_engine(40, manager="real")
    run(engine, job(0, 6, output=5, beams=BeamParams(3)))
    record = by_id(engine)[0]
    assert (record.ttft_s, record.e2e_s, record.itl_s) == (1.0, 5.0, [1.0] * 4)


def test_impossible_searches_are_refused() -> None:
    engine = fake_engine(40, manager="real", max_sequences=4)
    with pytest.raises(UsageError, match="of 1 beams"):
        BeamParams(1)
    with pytest.raises(UsageError, match="one best output"):
        job(0, 3, beams=BeamParams(2), sampling=SamplingParams(1.0))
    with pytest.raises(UsageError, match="larger vocabulary"):
        engine.add(job(0, 3, beams=BeamParams(VOCAB)))
    run(engine, job(1, 3, beams=BeamParams(5)))
    assert "max_sequences" in str(by_id(engine)[1].error)


def test_an_early_stop_ends_the_search_with_its_kth_hypothesis() -> None:
    """Of three candidates each step one stops: with two beams two hypotheses are there after two steps at most."""
    search = BeamSearch(BeamParams(2, early_stopping=True), 50, frozenset({9}))
    search.advance([[]], np.array([[9, 1, 2, 3]]), np.array([[-0.1, -0.2, -0.3, -0.4]]))
    assert not search.is_over
    search.advance([[1], [2]], np.array([[9, 4, 5, 6]] * 2), np.array([[-0.1, -0.2, -0.3, -0.4]] * 2))
    assert search.is_over
    assert [found.tokens for found in search.hypotheses] == [[9], [1, 9]]
