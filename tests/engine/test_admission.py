"""Admission policies: what each keeps free for whom, and that a request never waits for room nobody holds."""

from __future__ import annotations

import pytest

from kvbench.engine.loop import EngineLoop
from kvbench.engine.policies.admission import Adaptive
from kvbench.engine.telemetry import StepRecord
from tests.engine.fakes import by_id, fake_engine, honest_output, job, run

BOTH = pytest.mark.parametrize("manager", ["naive", "real"])


def step(engine: EngineLoop) -> StepRecord:
    record = engine.step()
    assert record is not None
    return record


@BOTH
def test_watermark_leaves_its_share_of_the_pool(manager: str) -> None:
    """Pool 20, a fifth of it kept: A takes 9 blocks, B with 7 would leave 4 and joins, C with 1 would leave 3."""
    engine = fake_engine(20, manager=manager, admission="watermark", watermark=0.2)
    for at, prompt in enumerate((36, 28, 4)):
        engine.add(job(at, prompt, output=2))
    assert (step(engine).admissions, engine.scheduler.num_running) == (2, 2)
    assert engine.manager.stats().blocks_used == 16


@BOTH
def test_watermark_counts_promised_blocks_as_taken(manager: str) -> None:
    """Chunks of 4: A is promised 9 of 20 blocks and holds 1, yet B with 8 would leave 3 and must wait."""
    engine = fake_engine(20, manager=manager, admission="watermark", watermark=0.2, max_batch_tokens=8)
    engine.add(job(0, 36, output=2))
    step(engine)
    engine.add(job(1, 32, output=2))
    assert step(engine).admissions == 0


@BOTH
@pytest.mark.parametrize("admission", ["watermark", "adaptive"])
@pytest.mark.parametrize("policy", ["static", "continuous", "chunked"])
def test_whoever_fits_an_empty_pool_is_served_whatever_should_stay_free(
    manager: str, admission: str, policy: str
) -> None:
    """Every request needs the whole pool of 6 blocks; nine tenths of it should stay free. They go one by one."""
    engine = fake_engine(6, manager=manager, admission=admission, watermark=0.9, batch_policy=policy)
    load = [job(at, 17, output=8) for at in range(4)]
    run(engine, *load)
    assert engine.take_outputs() == {one.request_id: honest_output(one) for one in load}


def adaptive(engine: EngineLoop) -> Adaptive:
    assert isinstance(engine.scheduler.admission, Adaptive)
    return engine.scheduler.admission


@BOTH
def test_adaptive_expects_a_share_of_the_outputs_of_those_who_run_and_all_of_the_newcomers(manager: str) -> None:
    """Pool 32 of 4 tokens, share 0.5 of 40 = 20 tokens. A holds 4 of 8 prompt tokens … worked by hand: after A (2
    blocks) and B's prompt (2) 28 blocks are left; 0.5 · 40 + 40 = 60 tokens are 15 blocks: B joins. For C 26 are left,
    and 0.5 · 80 + 66 = 106 tokens are 27 blocks: C waits."""
    engine = fake_engine(32, manager=manager, admission="adaptive", adaptive_initial=0.5, batch_policy="continuous")
    for at, output in enumerate((40, 40, 66)):
        engine.add(job(at, 8, output=output))
    assert step(engine).admissions == 2
    engine = fake_engine(32, manager=manager, admission="adaptive", adaptive_initial=0.5, batch_policy="continuous")
    for at, output in enumerate((40, 40, 64)):
        engine.add(job(at, 8, output=output))
    assert step(engine).admissions == 3


@BOTH
def test_adaptive_share_decays_with_every_decoding_step_and_begins_again_when_idle(manager: str) -> None:
    engine = fake_engine(
        32, manager=manager, admission="adaptive", adaptive_initial=0.6, adaptive_floor=0.2, adaptive_decay_steps=8
    )
    engine.add(job(0, 8, output=20))
    shares = []
    while engine.has_work:
        step(engine)
        shares.append(adaptive(engine).share)
    assert shares[:4] == pytest.approx([0.6, 0.55, 0.5, 0.45])
    assert shares[-1] == pytest.approx(0.2)
    engine.add(job(1, 8, output=2))
    step(engine)
    assert adaptive(engine).share == pytest.approx(0.6)


@BOTH
def test_adaptive_share_rises_after_a_preemption_by_what_was_produced(manager: str) -> None:
    """Two run in a pool of 7. When the second is preempted, the first has produced n of its 17 declared tokens: the
    share becomes (n + 2) / 18."""
    engine = fake_engine(
        7, manager=manager, admission="adaptive", adaptive_initial=0.0, adaptive_floor=0.0, adaptive_ahead=2
    )
    load = [job(0, 6, output=17), job(1, 6, output=9)]
    for one in load:
        engine.add(one)
    while engine.has_work:
        share = adaptive(engine).share
        record = step(engine)
        if record.preemptions:
            break
    assert share == 0.0
    produced = engine.scheduler.decoding.sequences[0].output_tokens - 1
    assert adaptive(engine).share == pytest.approx((produced + 2) / 18)
    run(engine)
    assert engine.take_outputs() == {one.request_id: honest_output(one) for one in load}


@BOTH
def test_adaptive_preempts_less_than_packing_and_serves_more_at_once_than_reserving(manager: str) -> None:
    """Forty requests that end at a stop token after about a third of what they declare."""
    found = {}
    for admission in ("max-utilization", "adaptive", "guaranteed-no-evict"):
        engine = fake_engine(48, manager=manager, admission=admission, max_sequences=32, adaptive_initial=0.5)
        load = [job(at, 8, output=32, stop_tokens=frozenset(range(0, 1000, 11))) for at in range(40)]
        steps = run(engine, *load)
        assert all(record.error is None for record in by_id(engine).values())
        found[admission] = (sum(s.preemptions for s in steps), sum(s.active_sequences for s in steps) / len(steps))
    assert found["guaranteed-no-evict"][0] == 0
    assert found["adaptive"][0] < found["max-utilization"][0]
    assert found["adaptive"][1] > found["guaranteed-no-evict"][1]
