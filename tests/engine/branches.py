"""Loads of requests with several sequences, and engines with little room, for the tests of samples and beams."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from hypothesis import strategies as st

from kvbench.engine.job import Job
from kvbench.engine.loop import EngineLoop
from kvbench.engine.speculation.drafter import Drafter
from kvbench.engine.telemetry import StepRecord
from tests.engine.fakes import ManualClock, fake_engine

POLICIES = ("static", "continuous", "chunked")
ADMISSIONS = ("max-utilization", "guaranteed-no-evict")


@st.composite
def prompts(draw: st.DrawFn) -> list[int]:
    """Few token ids and a common stem, so that prefixes are shared."""
    tail = draw(st.lists(st.integers(0, 3), min_size=1, max_size=9))
    return draw(st.sampled_from([[], [1, 2, 3, 4, 5, 6, 7]])) + tail


@st.composite
def small_engines(draw: st.DrawFn, drafter: Drafter | None = None) -> EngineLoop:
    """Pools of 8 to 40 blocks of 1 to 8 tokens, every batch policy and admission, with and without prefix cache."""
    host = draw(st.booleans())
    return fake_engine(
        draw(st.integers(8, 40)),
        manager="real",
        max_context=32,
        host_blocks=3 if host else 0,
        block_size=draw(st.sampled_from([1, 2, 4, 8])),
        batch_policy=draw(st.sampled_from(POLICIES)),
        admission=draw(st.sampled_from(ADMISSIONS)),
        prefix_cache="hash" if host else draw(st.sampled_from(["none", "hash"])),
        max_sequences=draw(st.sampled_from([4, 6, 12])),
        max_batch_tokens=draw(st.sampled_from([1, 3, 8, 64])),
        drafter=drafter,
        draft_tokens=draw(st.sampled_from([1, 2, 5])),
    )


def serve_all(engine: EngineLoop, load: list[Job]) -> list[StepRecord]:
    """By their arrivals; a step that computes nothing while there is work would be a fault."""
    clock, coming = engine.clock, sorted(load, key=lambda job: job.arrival_s, reverse=True)
    assert isinstance(clock, ManualClock)
    records = []
    for _ in range(5000):
        while coming and coming[-1].arrival_s <= clock.now():
            engine.add(coming.pop())
        record = engine.step()
        if record is not None:
            records.append(record)
        elif coming:
            clock.time = coming[-1].arrival_s
        else:
            return records
    raise AssertionError("the load was never served")


def assert_nothing_is_held(engine: EngineLoop) -> None:
    """All blocks are back, all seats are free, and nothing of a request is left for the next one."""
    stats = engine.manager.stats()
    assert stats.blocks_used == stats.blocks_in_transfer == stats.reserved_slots == 0
    assert engine.scheduler.branching.reserved_seats == engine.scheduler.branching.searches == 0
    assert not engine._live


def naive_beam_search(
    continuations: Callable[[list[int]], tuple[list[int], list[float]]],
    prompt: list[int],
    width: int,
    max_tokens: int,
    *,
    stop: frozenset[int] = frozenset(),
    length_penalty: float = 1.0,
    early_stopping: bool | str = False,
) -> tuple[list[list[int]], float]:
    """The outputs of a search that recomputes everything from whole token lists, best first, and the smallest lead
    by which any of its choices was made. `continuations` gives ids and log-probabilities, likeliest first."""
    live: list[tuple[float, list[int]]] = [(0.0, [])]
    done: list[tuple[float, list[int]]] = []
    lead = np.inf
    for length in range(1, max_tokens + 1):
        found = [
            (score + log_probability, [*output, token])
            for score, output in live
            for token, log_probability in zip(*continuations(prompt + output), strict=True)
        ]
        found = sorted(found, key=lambda one: -one[0])[: max(2, 1 + len(stop)) * width]
        scores = np.array([score for score, _ in found])
        ends = [output[-1] in stop or length == max_tokens for _, output in found]
        last = [at for at, end in enumerate(ends) if not end][:width][-1:] or [width]
        lead = min(lead, float((scores[:-1] - scores[1:])[: last[0] + 1].min()))
        done += [
            (one[0] / length**length_penalty, one[1]) for one, end in zip(found[:width], ends, strict=False) if end
        ]
        done = sorted(done, key=lambda one: -one[0])[:width]
        live = [one for one, end in zip(found, ends, strict=True) if not end][:width]
        if length == max_tokens or (len(done) == width and early_stopping is True):
            break
        longest = max_tokens if early_stopping == "never" and length_penalty > 0 else length
        if len(done) == width:
            hope = live[0][0] / longest**length_penalty
            lead = min(lead, abs(hope - done[-1][0]))
            if hope <= done[-1][0]:
                break
    if len(done) > 1:
        ranks = np.array([score for score, _ in done])
        lead = min(lead, float((ranks[:-1] - ranks[1:]).min()))
    return [output for _, output in done], lead
