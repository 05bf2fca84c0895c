"""Random loads under every policy and tiny pools: nothing is lost, nothing is doubled, nothing waits for ever."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbench.engine.job import Job
from kvbench.engine.loop import EngineLoop
from kvbench.engine.policies.registry import ADMISSION_POLICIES, VICTIM_POLICIES
from kvbench.engine.policies.registry import ORDERS as ORDER_NAMES
from tests.engine.fakes import VOCAB, FakeRunner, ManualClock, fake_engine, honest_output

POLICIES = ("static", "continuous", "chunked")
ADMISSIONS = tuple(ADMISSION_POLICIES)
VICTIMS = tuple(VICTIM_POLICIES)
ORDERS = tuple(ORDER_NAMES)
RESERVING = ("contiguous", "buddy")


@st.composite
def jobs(draw: st.DrawFn) -> list[Job]:
    """Up to 12 jobs; few token ids and a common stem, so that prefixes are shared and stop tokens are hit."""
    stem = draw(st.lists(st.integers(0, 3), max_size=14))
    made = []
    for request_id in range(draw(st.integers(1, 12))):
        tail = draw(st.lists(st.integers(0, 3), min_size=1, max_size=14))
        output = draw(st.integers(1, 12))
        forced = draw(st.none() | st.lists(st.integers(0, VOCAB - 1), min_size=output, max_size=output))
        made.append(
            Job(
                request_id=request_id,
                prompt=np.array((stem if draw(st.booleans()) else []) + tail, np.int32),
                max_tokens=output,
                forced=None if forced is None else np.array(forced, np.int32),
                stop_tokens=frozenset(range(0, VOCAB, 9)) if draw(st.booleans()) else frozenset(),
                arrival_s=float(draw(st.integers(0, 12))),
                salt=draw(st.sampled_from([None, "a"])),
                priority=draw(st.integers(0, 2)),
            )
        )
    return made


@st.composite
def engines(draw: st.DrawFn, manager: str) -> EngineLoop:
    caching = draw(st.sampled_from(["none", "hash"] + ["host", "radix", *RESERVING] * (manager == "real")))
    has_cache, policy = caching in ("hash", "host", "radix"), draw(st.sampled_from(POLICIES))
    return fake_engine(
        draw(st.integers(48, 100) if caching in RESERVING else st.integers(2, 14)),
        manager=manager,
        max_context=48,
        host_blocks=3 if caching == "host" else 0,
        allocator=caching if caching in RESERVING else "paged",
        reservation=draw(st.sampled_from(["max", "pow2", "oracle"])),
        block_size=draw(st.sampled_from([1, 2, 4, 16])),
        batch_policy=policy,
        deduplicate_prefixes=has_cache and policy != "static" and draw(st.booleans()),
        watermark=draw(st.sampled_from([0.01, 0.5])),
        admission=draw(st.sampled_from(ADMISSIONS)),
        prefix_cache={"hash": "hash", "host": "hash", "radix": "radix"}.get(caching, "none"),
        victim=draw(st.sampled_from(VICTIMS)),
        order=draw(st.sampled_from(ORDERS if has_cache else ORDERS[:3])),
        starvation_limit=draw(st.sampled_from([1, 3, 64])),
        partial_block_reuse=draw(st.booleans()) if manager == "real" and caching in ("radix", "host") else False,
        max_sequences=draw(st.sampled_from([1, 2, 5, 12])),
        max_batch_tokens=draw(st.sampled_from([1, 3, 8, 64])),
    )


def play(engine: EngineLoop, load: list[Job], aborts: dict[int, int]) -> set[int]:
    """Serve the load by its arrivals; no step may compute nothing while there is work.

    `aborts` is step → request: given up before that step, if it is alive then. Returns those that were.
    """
    aborted = set()
    clock = engine.clock
    assert isinstance(clock, ManualClock)
    coming = sorted(load, key=lambda job: job.arrival_s, reverse=True)
    for turn in range(5000):
        while coming and coming[-1].arrival_s <= clock.now():
            engine.add(coming.pop())
        if is_alive(engine, aborts.get(turn)):
            engine.abort(aborts[turn])
            engine.check_invariants()
            aborted.add(aborts[turn])
        if engine.has_work:
            record = engine.step()
            assert record is not None
            assert record.batch_size > 0, "a step that computed nothing"
            assert record.preemptions == 0 or record.admissions == 0, "room made by a preemption given to a newcomer"
            check_budget(engine)
        elif coming:
            clock.wait_until(coming[-1].arrival_s)
        else:
            return aborted
    pytest.fail("the load never ends")


def is_alive(engine: EngineLoop, request_id: int | None) -> bool:
    scheduler = engine.scheduler
    alive = [*scheduler.waiting, *scheduler.prefilling, *scheduler.decoding.sequences]
    return request_id in [sequence.request_id for sequence in alive]


def check_budget(engine: EngineLoop) -> None:
    assert isinstance(engine.runner, FakeRunner)
    batch, budget = engine.runner.batches[-1], engine.settings.max_batch_tokens
    pieces = batch.query_lengths[batch.num_decodes :]
    if engine.settings.speculation != "none":
        return  # the rows of a verification look like sequences here
    assert batch.num_sequences <= engine.settings.max_sequences
    if engine.settings.batch_policy == "chunked":
        assert batch.num_tokens <= budget
    elif len(pieces) > 1:
        assert pieces.sum() <= budget


def check_everything_was_served(engine: EngineLoop, load: list[Job], aborted: set[int]) -> None:
    records, outputs = engine.take_finished(), engine.take_outputs()
    assert sorted(record.request_id for record in records) == [job.request_id for job in load]
    for record in records:
        job = load[record.request_id]
        if record.finish_reason == "rejected":
            assert record.request_id not in outputs
            continue
        if record.request_id in aborted:
            assert outputs[job.request_id] == honest_output(job)[: record.output_tokens]
            continue
        assert record.finish_reason in ("length", "stop")
        assert outputs[job.request_id] == honest_output(job)
        assert record.output_tokens == len(outputs[job.request_id]) == len(record.itl_s) + 1
        assert record.queue_time_s is not None
        assert record.queue_time_s >= 0
        if engine.settings.admission == "guaranteed-no-evict":
            assert record.preemptions == 0


def check_engine_is_empty(engine: EngineLoop) -> None:
    stats = engine.manager.stats()
    assert stats.blocks_used == stats.blocks_in_transfer == stats.reserved_slots == 0
    assert stats.blocks_free + stats.blocks_cached == stats.blocks_total
    assert engine.scheduler.held == []


@pytest.mark.parametrize("manager", ["naive", "real"])
def test_any_load_under_any_policy_is_served_exactly_once_with_exactly_its_tokens(manager: str) -> None:
    @settings(max_examples=150, deadline=None)
    @given(
        load=jobs(),
        engine=engines(manager),
        aborts=st.dictionaries(st.integers(0, 30), st.integers(0, 11), max_size=2),
    )
    def check(load: list[Job], engine: EngineLoop, aborts: dict[int, int]) -> None:
        aborted = play(engine, load, aborts)
        check_everything_was_served(engine, load, aborted)
        check_engine_is_empty(engine)

    check()
