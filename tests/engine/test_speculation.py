"""Speculation: exactly the plain tokens, whatever is drafted, and books that add up after every rollback."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbench.cache.types import CacheManager, Int32s
from kvbench.costmodel.profiles import virtual_device
from kvbench.costmodel.roofline import roofline
from kvbench.engine.beams import BeamParams
from kvbench.engine.decodes import DecodeSet
from kvbench.engine.job import Job
from kvbench.engine.keys import mix, request_key
from kvbench.engine.schedule import Schedule
from kvbench.engine.speculation.declared import DeclaredDrafter, accepted
from kvbench.engine.speculation.drafter import Drafter
from kvbench.engine.speculation.drafts import Drafts
from kvbench.engine.speculation.prompt_lookup import PromptLookup, look_up
from kvbench.engine.virtual import VirtualEngine
from kvbench.errors import UsageError
from kvbench.geometry.resolve import resolve_model
from kvbench.measure.virtual_case import virtual_engine
from kvbench.spec.engine import EngineSettings
from tests.engine.branches import assert_nothing_is_held, prompts, serve_all, small_engines
from tests.engine.fakes import VOCAB, FakeRunner, by_id, fake_engine, honest_output, job, next_token, run

STOPS = frozenset(range(0, VOCAB, 9))


@dataclass
class Guesser:
    """Knows the fake model's tokens, and is wrong about `wrong` in seven of them; never drafts more than `most`."""

    wrong: int = 2
    most: int = 9
    steps: list[Drafts] = field(default_factory=list)

    def propose(self, decoding: DecodeSet, most: Int32s) -> Drafts:
        counts = np.minimum(most, self.most).astype(np.int32)
        drafts = Drafts(counts)
        found: list[int] = []
        for sequence, count in zip(decoding.sequences, counts.tolist(), strict=False):
            tokens = sequence.content.tokens.tolist()
            for _ in range(count):
                token = next_token(tokens)
                tokens.append((token + 1) % VOCAB if mix(token) % 7 < self.wrong else token)
                found.append(tokens[-1])
        drafts.tokens = np.array(found, np.int64)
        return drafts

    def draft(self, step: Schedule, manager: CacheManager) -> None:
        assert step.drafts is not None
        self.steps.append(step.drafts)


@st.composite
def loads(draw: st.DrawFn) -> list[Job]:
    return [
        Job(
            request_id=request_id,
            prompt=np.array(draw(prompts()), np.int32),
            max_tokens=draw(st.integers(1, 14)),
            stop_tokens=STOPS if draw(st.booleans()) else frozenset(),
            arrival_s=float(draw(st.integers(0, 9))),
            n=draw(st.sampled_from([1, 1, 2])),
        )
        for request_id in range(draw(st.integers(1, 6)))
    ]


drafters = st.sampled_from([0, 2, 7]).map(Guesser) | st.just(PromptLookup())


@settings(max_examples=120, deadline=None)
@given(data=st.data(), load=loads(), drafter=drafters)
def test_the_tokens_are_the_plain_ones_under_every_policy(
    data: st.DataObject, load: list[Job], drafter: Drafter
) -> None:
    engine = data.draw(small_engines(drafter))
    steps = serve_all(engine, load)
    records, outputs = by_id(engine), engine.take_all_outputs()
    for one in load:
        record = records[one.request_id]
        if record.finish_reason == "rejected":
            continue
        assert record.error is None
        assert outputs[one.request_id] == [honest_output(one)] * one.n
        assert 0 <= record.accepted_tokens <= record.draft_tokens
    assert_nothing_is_held(engine)
    assert sum(step.accepted_tokens for step in steps) == sum(record.accepted_tokens for record in records.values())
    decoded = sum(record.output_tokens - one.n for one in load if (record := records[one.request_id]).output_tokens)
    if sum(step.preemptions for step in steps) == 0:
        assert sum(step.decode_tokens for step in steps) == decoded


@pytest.mark.parametrize(("wrong", "steps", "rollbacks"), [(0, 4, 0), (7, 13, 9)])
def test_right_drafts_save_steps_and_wrong_ones_roll_back(wrong: int, steps: int, rollbacks: int) -> None:
    """Output 13 by 4 drafts a step: 1 + 5 + 5 + 2 tokens, or 1 a step; the last three need no draft or fewer."""
    engine = fake_engine(40, manager="real", drafter=Guesser(wrong), draft_tokens=4)
    found = run(engine, job(0, 6, output=13))
    assert len(found) == steps
    assert sum(step.rollbacks for step in found) >= rollbacks
    record = by_id(engine)[0]
    assert record.accepted_tokens == 13 - steps
    assert engine.take_outputs()[0] == honest_output(job(0, 6, output=13))
    gaps = {4: [0.2] * 10 + [0.5] * 2, 13: [1.0] * 12}
    assert record.itl_s == gaps[steps]


def test_rejected_tokens_are_never_published() -> None:
    """Blocks of 2 and always wrong drafts: what the prefix cache learns is the prompt and the real output only."""
    engine = fake_engine(60, manager="real", drafter=Guesser(7), block_size=2, prefix_cache="hash", draft_tokens=5)
    one = job(0, 6, output=8)
    run(engine, one)
    tokens = one.prompt.tolist() + honest_output(one)
    assert engine.manager.stats().live_cached_tokens == (len(tokens) - 1) // 2 * 2
    run(engine, job(1, tokens, output=1))
    assert by_id(engine)[1].cached_tokens == len(tokens) - 2 + len(tokens) % 2


def test_e32_drafts_of_a_victim_go_with_it_and_give_their_budget_back() -> None:
    """Pool 4, budget 8, three sequences that each want 3 drafts and a second block: the last one is preempted. Its
    drafts are not in the step, and the two that are left get all 3 of theirs, for which there was no budget before."""
    guesser = Guesser(0)
    engine = fake_engine(4, manager="real", drafter=guesser, draft_tokens=3, max_batch_tokens=8)
    load = [job(at, 2, output=9) for at in range(3)]
    steps = []
    for one in load:
        engine.add(one)
    while engine.has_work and not any(step.preemptions for step in steps):
        step = engine.step()
        assert step is not None
        steps.append(step)
    assert isinstance(engine.runner, FakeRunner)
    assert (steps[-1].preemptions, steps[-1].batch_size, steps[-1].draft_tokens) == (1, 2, 6)
    assert guesser.steps[-1].counts.tolist() == [3, 3]
    assert engine.runner.batches[-1].num_tokens == 8
    run(engine)
    outputs = engine.take_outputs()
    assert [outputs[at] for at in range(3)] == [honest_output(one) for one in load]
    assert by_id(engine)[2].preemptions == 1


def test_drafts_preempt_nobody() -> None:
    """Both sequences fit without drafts, so they are served without."""
    plain = fake_engine(8, manager="real")
    ahead = fake_engine(8, manager="real", drafter=Guesser(0), draft_tokens=9)
    for engine in (plain, ahead):
        steps = run(engine, job(0, 7, output=9), job(1, 7, output=9))
        assert sum(step.preemptions for step in steps) == 0


def test_tokens_are_those_of_a_deterministic_look_up() -> None:
    assert look_up(np.array([1, 2, 3, 9, 1, 2, 3]), 3).tolist() == [9, 1, 2]
    assert look_up(np.array([5, 2, 3, 9, 2, 3]), 1).tolist() == [9]
    assert look_up(np.array([3, 8, 3, 9, 3]), 4).tolist() == [9, 3]
    assert look_up(np.array([1, 2, 3]), 4).tolist() == []
    assert look_up(np.array([7]), 4).tolist() == []
    assert look_up(np.array([7, 7]), 4).tolist() == [7]
    assert look_up(np.array([7, 7]), 0).tolist() == []


def test_a_declared_rate_is_met_and_names_its_tokens() -> None:
    """Bernoulli by (sequence, index): the share over many, and the same answer in every batch."""
    keys = np.array([request_key(1, at) for at in range(200)], np.uint64)
    grid, indices = np.repeat(keys, 100), np.tile(np.arange(100), 200)
    found = accepted(grid, indices, 0.7)
    assert abs(found.mean() - 0.7) < 4 * np.sqrt(0.21 / found.size)
    assert (accepted(grid[::-1], indices[::-1], 0.7)[::-1] == found).all()
    assert not accepted(grid, indices, 0.0).any()
    assert accepted(grid, indices, 1.0).all()


def test_declared_drafts_go_with_forced_outputs() -> None:
    """Two drafts a step, all of them right: three tokens a step."""
    forced = np.arange(13, dtype=np.int32)
    for rate, steps in ((1.0, 5), (0.0, 13)):
        engine = fake_engine(40, manager="real", drafter=DeclaredDrafter(rate), draft_tokens=2)
        assert len(run(engine, job(0, 6, output=13, forced=forced))) == steps
        assert engine.take_outputs()[0] == forced.tolist()


def test_no_drafts_go_with_beams() -> None:
    engine = fake_engine(40, manager="real", drafter=PromptLookup())
    run(engine, job(0, 6, output=4, beams=BeamParams(2)))
    assert "drafts" in str(by_id(engine)[0].error)


def virtual(**more: object) -> VirtualEngine:
    settings = {"kv_memory": "64MiB", "weight_dtype": "fp32", "max_sequences": 8, **more}
    return virtual_engine(
        resolve_model("tiny-llama"), EngineSettings.model_validate(settings), roofline(virtual_device("h100")).rates
    )


def virtual_run(engine: VirtualEngine) -> tuple[int, float]:
    forced = np.arange(40, dtype=np.int32)
    steps = run(engine, *(job(at, 12, output=40, forced=forced) for at in range(8)))
    assert set(map(tuple, engine.take_outputs().values())) == {tuple(range(40))}
    return len(steps), engine.clock.now()


def test_under_the_virtual_clock_a_declared_rate_decides_and_drafting_takes_time() -> None:
    plain, _ = virtual_run(virtual())
    found = {}
    for rate in (0.0, 0.5, 1.0):
        engine = virtual(speculation="prompt-lookup", draft_tokens=3, acceptance_rate=rate)
        found[rate] = virtual_run(engine)
        assert virtual_run(virtual(speculation="prompt-lookup", draft_tokens=3, acceptance_rate=rate)) == found[rate]
    assert found[0.0][0] == plain
    assert found[1.0][0] == 1 + 10 < found[0.5][0] < plain
    times = [
        virtual_run(virtual(draft_tokens=3, acceptance_rate=1.0, **one))[1]
        for one in (
            {"speculation": "prompt-lookup"},
            {"speculation": "first-layers", "draft_layers": 1},
            {"speculation": "draft-model", "draft_model": "tiny-llama"},
        )
    ]
    assert times == sorted(times)
    assert times[0] < times[2]
    with pytest.raises(UsageError, match="nobody knows"):
        virtual(speculation="prompt-lookup")


def test_drafts_leave_a_step_with_their_sequence() -> None:
    drafts = Drafts(np.array([2, 0, 3], np.int32))
    drafts.tokens, drafts.declared = np.array([1, 2, 3, 4, 5]), np.array([True, False, True, False, True])
    drafts.remove(0)
    assert (drafts.counts.tolist(), drafts.tokens.tolist()) == ([0, 3], [3, 4, 5])
    assert drafts.declared.tolist() == [True, False, True]
    drafts.remove(0)
    assert (drafts.counts.tolist(), drafts.tokens.tolist()) == ([3], [3, 4, 5])
