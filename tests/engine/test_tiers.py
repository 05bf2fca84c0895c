"""Tiers, swap and late copies under the scheduler: whatever is slow or fails, every token is the right one."""

from __future__ import annotations

from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, note, settings

from kvbench.cache.manager import make_manager
from kvbench.cache.types import CacheSettings
from kvbench.costmodel.model import CostModel
from kvbench.costmodel.profiles import virtual_device
from kvbench.costmodel.roofline import roofline
from kvbench.engine.engine import Engine
from kvbench.engine.job import Job
from kvbench.engine.loop import EngineLoop
from kvbench.engine.memory import table_rows
from kvbench.engine.model import Model
from kvbench.engine.policies.preemption import SwapElseRecompute
from kvbench.engine.speculation.prompt_lookup import PromptLookup
from kvbench.engine.virtual import VirtualEngine
from kvbench.geometry.resolve import resolve_model
from kvbench.spec.engine import EngineSettings
from tests.engine.fakes import VOCAB, ManualClock, honest_output, job, run
from tests.engine.late import LateRunner
from tests.engine.test_properties import (
    check_engine_is_empty,
    check_everything_was_served,
    jobs,
    play,
)


def tiered_engine(
    pool: int,
    *,
    host: int = 0,
    disk: int = 0,
    swap: int = 0,
    lag: int = 0,
    failing: float = 0.0,
    seed: int = 0,
    hash_function: str = "xxh3-128",
    **given_settings: object,
) -> EngineLoop:
    """An engine over `pool` blocks of four tokens and so many blocks below; `lag` and `failing` as in `LateRunner`."""
    chosen = EngineSettings.model_validate(
        {
            "block_size": 4,
            "offload": "host+disk" if disk else "host" if host else "none",
            "host_memory": host,
            "disk_memory": disk,
            "swap_memory": swap,
            "prefix_cache": "hash" if host else "none",
            **given_settings,
        }
    )
    sizes = CacheSettings(
        block_size=chosen.block_size,
        num_blocks=pool,
        max_sequences=table_rows(chosen),
        max_context=48,
        prefix_cache=chosen.prefix_cache,
        hash_function=hash_function,
        partial_block_reuse=chosen.partial_block_reuse,
        eviction=chosen.eviction,
        host_blocks=host,
        host_eviction=chosen.host_eviction,
        disk_blocks=disk,
        offload_when=chosen.offload_when,
        store_threshold=chosen.store_threshold,
        swap_blocks=swap if chosen.preemption != "recompute" else 0,
    )
    clock = ManualClock()
    runner = LateRunner(
        pool, chosen.block_size, clock, host, disk_blocks=disk, swap_blocks=swap, lag=lag, failing=failing, seed=seed
    )
    return EngineLoop(
        make_manager(sizes),
        chosen,
        runner,
        block_bytes=64,
        vocab_size=VOCAB,
        clock=clock,
        check=True,
        drafter=PromptLookup() if chosen.speculation == "prompt-lookup" else None,
    )


@st.composite
def engines(draw: st.DrawFn) -> EngineLoop:
    host = draw(st.sampled_from([0, 1, 3, 20]))
    preemption = draw(st.sampled_from(["recompute", "swap", "swap-else-recompute"]))
    policy = draw(st.sampled_from(["static", "continuous", "chunked"]))
    return tiered_engine(
        draw(st.integers(2, 14)),
        host=host,
        disk=draw(st.sampled_from([0, 1, 30])) if host else 0,
        swap=draw(st.sampled_from([1, 4, 40])) if preemption != "recompute" else 0,
        lag=draw(st.sampled_from([0, 0, 1, 4])),
        failing=draw(st.sampled_from([0.0, 0.0, 0.2, 0.7])),
        seed=draw(st.integers(0, 3)),
        preemption=preemption,
        batch_policy=policy,
        offload_when=draw(st.sampled_from(["evicted", "completed"])),
        store_threshold=draw(st.sampled_from([1, 2])),
        promotion="blocking" if policy == "static" else draw(st.sampled_from(["blocking", "overlapped"])),
        prefix_cache=draw(st.sampled_from(["hash", "radix"] if host else ["none", "hash"])),
        host_eviction=draw(st.sampled_from(["lru", "arc"])),
        speculation=draw(st.sampled_from(["none", "none", "prompt-lookup"])),
        partial_block_reuse=draw(st.booleans()),
        victim=draw(st.sampled_from(["last-arrived", "first-arrived", "fewest-tokens"])),
        block_size=draw(st.sampled_from([1, 2, 4])),
        admission=draw(st.sampled_from(["max-utilization", "guaranteed-no-evict"])),
        max_sequences=draw(st.sampled_from([1, 2, 5, 12])),
        max_batch_tokens=draw(st.sampled_from([1, 3, 8, 64])),
    )


@settings(max_examples=120, deadline=None)
@given(load=jobs(), engine=engines(), aborts=st.dictionaries(st.integers(0, 30), st.integers(0, 11), max_size=2))
def test_any_load_is_served_exactly_whatever_is_late_and_whatever_fails(
    load: list[Job], engine: EngineLoop, aborts: dict[int, int]
) -> None:
    note(f"{engine.settings} {engine.manager.settings}")
    aborted = play(engine, load, aborts)
    check_everything_was_served(engine, load, aborted)
    engine.settle()
    engine.check_invariants()
    check_engine_is_empty(engine)
    stats = engine.manager.stats()
    assert stats.swap_blocks_used == 0


def test_e42_swapped_sequences_come_back_before_new_ones_and_the_area_never_grows() -> None:
    """Pool 5: the last arrived is swapped out; newcomers wait until it is back, whatever the area is asked for."""
    engine = tiered_engine(5, swap=4, preemption="swap", max_sequences=4)
    load = [job(0, 7, output=8, arrival_s=-3.0), job(1, 7, output=8, arrival_s=-2.0)]
    for one in load:
        engine.add(one)
    while not engine.scheduler.swapped:
        assert engine.step() is not None
    newcomer = job(2, 3, output=2, arrival_s=-1.0)
    engine.add(newcomer)
    admitted = []
    while engine.has_work:
        waiting = [sequence.request_id for sequence in (*engine.scheduler.swapped, *engine.scheduler.waiting)]
        record = engine.step()
        assert record is not None
        assert engine.manager.stats().swap_blocks_used <= 4
        after = [sequence.request_id for sequence in (*engine.scheduler.swapped, *engine.scheduler.waiting)]
        admitted += [request for request in waiting if request not in after]
    assert admitted == [1, 2]
    assert engine.take_outputs() == {one.request_id: honest_output(one) for one in [*load, newcomer]}
    records = {record.request_id: record for record in engine.take_finished()}
    assert (records[1].preemptions, records[1].recomputed_tokens) == (1, 0)


def test_e43_without_room_to_swap_a_sequence_is_recomputed_and_nobody_is_aborted() -> None:
    engine = tiered_engine(5, swap=1, preemption="swap", max_sequences=4)
    load = [job(index, 7, output=8) for index in range(3)]
    steps = run(engine, *load)
    assert sum(step.preemptions for step in steps) > 0
    assert engine.manager.stats().swap_refusals > 0
    assert engine.take_outputs() == {one.request_id: honest_output(one) for one in load}


def below_device(**settings: object) -> tuple[EngineLoop, list[int]]:
    """An engine whose host tier holds the first twelve tokens of the prompt that is returned."""
    engine = tiered_engine(8, host=16, lag=6, max_sequences=2, **settings)
    prompt = [(500 + 3 * at) % VOCAB for at in range(14)]
    run(engine, job(0, prompt), job(1, 32))
    engine.settle()
    return engine, prompt


def test_e33_who_waits_for_blocks_takes_no_seat_while_promotions_overlap() -> None:
    """Two seats; two requests wait for blocks from the host: the third and the fourth run meanwhile."""
    engine, prompt = below_device(promotion="overlapped")
    load = [job(2, prompt[:13]), job(3, [*prompt[:12], 1]), job(4, 3), job(5, 2)]
    for one in load:
        engine.add(one)
    record = engine.step()
    assert record is not None
    assert engine.scheduler.num_loading == 2
    assert record.batch_size == 2
    run(engine)
    assert engine.take_outputs()[2] == honest_output(load[0])


def test_a_blocking_promotion_holds_the_step_up_and_is_charged_to_it() -> None:
    engine, prompt = below_device(promotion="blocking")
    one = job(2, prompt)
    steps = run(engine, one, job(3, 3))
    assert steps[0].batch_size == 2
    assert steps[0].host_promotions == 3
    assert steps[0].promotion_stall_s > 0
    assert engine.take_outputs()[2] == honest_output(one)


def test_an_overlapped_promotion_is_waited_for_only_when_there_is_nothing_else_to_do() -> None:
    engine, prompt = below_device(promotion="overlapped")
    one = job(2, prompt)
    (step,) = run(engine, one)
    assert (step.batch_size, step.host_promotions) == (1, 3)
    assert step.promotion_stall_s > 0
    assert engine.take_outputs()[2] == honest_output(one)


def test_swap_else_recompute_goes_by_what_steps_and_copies_took() -> None:
    policy = SwapElseRecompute()
    assert policy.prefers_swap(100, 7)
    policy.saw_step(10, 1.0)
    policy.saw_copies(1, 0.5)
    assert policy.prefers_swap(100, 7)
    policy.saw_copies(1, 100.0)
    assert not policy.prefers_swap(100, 7)


@pytest.mark.parametrize("promotion", ["blocking", "overlapped"])
@pytest.mark.parametrize("when", ["evicted", "completed"])
def test_real_tiers_give_the_same_tokens_as_none(tmp_path: Path, promotion: str, when: str) -> None:
    """Threads, files and tensors: greedy answers with host, disk and swap equal those of a pool that holds all."""
    model = Model.random(resolve_model("tiny-llama"), seed=3)
    prompts = [[(7 * group + 3 * at) % 97 for at in range(48)] + [group, turn] for turn in (0, 1) for group in range(5)]
    plain = Engine(model, EngineSettings(kv_memory=4 << 20, max_context=128)).generate(prompts, 6)
    one = 32 * 1024
    engine = Engine(
        model,
        EngineSettings(
            kv_memory=12 * one,
            max_context=128,
            max_sequences=3,
            max_batch_tokens=32,
            prefix_cache="hash",
            offload="host+disk",
            host_memory=6 * one,
            disk_memory=64 * one,
            disk_path=str(tmp_path),
            offload_when=when,  # type: ignore[arg-type]
            promotion=promotion,  # type: ignore[arg-type]
            preemption="swap",
            swap_memory=16 * one,
        ),
        check=True,
    )
    assert engine.generate(prompts, 6) == plain
    assert engine.generate(prompts, 6) == plain
    engine.settle()
    stats = engine.manager.stats()
    assert stats.demoted_blocks > 0
    assert stats.promoted_blocks > 0
    engine.close()
    assert list(tmp_path.glob("kv-tier-*")) == []


def test_e75_files_that_somebody_changes_cost_hits_and_never_give_wrong_tokens(tmp_path: Path) -> None:
    """Between two rounds every file is damaged in another way; the answers are the same, the failures are counted."""
    model = Model.random(resolve_model("tiny-llama"), seed=3)
    prompts = [[(7 * group + 3 * at) % 97 for at in range(48)] + [group] for group in range(6)]
    one = 32 * 1024
    engine = Engine(
        model,
        EngineSettings(
            kv_memory=8 * one, max_context=64, prefix_cache="hash", offload="host+disk", host_memory=6 * one,
            disk_memory=64 * one, disk_path=str(tmp_path),
        ),
        check=True,
    )  # fmt: skip
    expected = engine.generate(prompts, 4)
    engine.settle()
    for index, path in enumerate(sorted(tmp_path.rglob("*.kv"))):
        damage(path, index % 4)
    failed = 0
    for index, prompt in enumerate(prompts):
        engine.add(Job(index, np.array(prompt, np.int32), 4, arrival_s=float(index)))
    while engine.has_work:
        record = engine.step()
        assert record is not None
        failed += record.failed_copies
    outputs = engine.take_outputs()
    assert [outputs[index] for index in range(len(prompts))] == expected
    assert failed > 0
    engine.close()


def damage(path: Path, how: int) -> None:
    data = bytearray(path.read_bytes())
    if how == 0:
        path.unlink()
    elif how == 1:
        path.write_bytes(data[: len(data) // 2])
    elif how == 2:
        data[-1] ^= 1
        path.write_bytes(data)
    else:
        other = next(file for file in path.parent.glob("*.kv") if file != path)
        path.write_bytes(other.read_bytes())


def test_on_the_virtual_clock_overlapped_copies_cost_the_step_less_than_blocking_ones() -> None:
    """Sixteen prompts that come back from the host while others decode: blocking stalls for exactly the copies'
    price, overlapped for less; the same copies are made, and all that was asked for is served."""
    geometry, one = resolve_model("tiny-llama"), 32 * 1024
    stalls, copied = {}, {}
    for promotion in ("blocking", "overlapped"):
        chosen = EngineSettings.model_validate(
            {
                "kv_memory": 40 * one, "kv_dtype": "fp32", "max_sequences": 4, "prefix_cache": "hash",
                "offload": "host", "host_memory": 400 * one, "promotion": promotion,
            }
        )  # fmt: skip
        rates = roofline(virtual_device("h100")).rates
        cost = CostModel(geometry, rates, weight_dtype="fp32", kv_dtype="fp32", block_size=16)
        engine = VirtualEngine(geometry, chosen, cost, weight_dtype="fp32", max_context=256, check=True)
        prompts = [[(7 * group + 3 * at) % 97 for at in range(64)] + [turn] for turn in range(2) for group in range(16)]
        steps = run(engine, *(job(index, prompt, output=8) for index, prompt in enumerate(prompts)))
        assert len(engine.take_finished()) == 32
        stalls[promotion] = sum(step.promotion_stall_s for step in steps)
        copied[promotion] = sum(step.host_promotions for step in steps)
        if promotion == "blocking":
            prices = [cost.copies_s("promote", step.host_promotions) for step in steps if step.host_promotions]
            assert stalls[promotion] == pytest.approx(sum(prices))
    assert copied["blocking"] > 0
    assert copied["overlapped"] > 0
    assert stalls["overlapped"] < stalls["blocking"]
