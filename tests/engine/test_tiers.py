"""Tiers, swap and late copies under the scheduler: whatever is slow or fails, every token is the right one."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given, note, settings

from kvbench.cache.manager import make_manager
from kvbench.cache.types import CacheSettings
from kvbench.engine.job import Job
from kvbench.engine.loop import EngineLoop
from kvbench.engine.memory import table_rows
from kvbench.spec.engine import EngineSettings
from tests.engine.fakes import VOCAB, ManualClock
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
    return EngineLoop(make_manager(sizes), chosen, runner, block_bytes=64, vocab_size=VOCAB, clock=clock, check=True)


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
        prefix_cache="hash" if host else draw(st.sampled_from(["none", "hash"])),
        host_eviction=draw(st.sampled_from(["lru", "arc"])),
        block_size=draw(st.sampled_from([1, 2, 4])),
        admission=draw(st.sampled_from(["max-utilization", "guaranteed-no-evict"])),
        max_sequences=draw(st.sampled_from([1, 2, 5, 12])),
        max_batch_tokens=draw(st.sampled_from([1, 3, 8, 64])),
    )


@settings(max_examples=300, deadline=None)
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
