"""Each batch policy step by step, against what its definition says: (prefill tokens, decode tokens) per step."""

from __future__ import annotations

import pytest

from kvbench.engine.policies.registry import (
    ADMISSION_POLICIES,
    BATCH_POLICIES,
    ORDERS,
    VICTIM_POLICIES,
    admission_policy,
    batch_policy,
    order_of,
    victim_policy,
)
from kvbench.engine.telemetry import StepRecord
from kvbench.errors import UsageError
from kvbench.spec.engine import EngineSettings
from tests.engine.fakes import by_id, cache_settings, fake_engine, job, run
from tests.engine.naive_manager import NaiveManager


def work(records: list[StepRecord]) -> list[tuple[int, int]]:
    return [(record.prefill_tokens, record.decode_tokens) for record in records]


def test_continuous_joins_and_leaves_at_every_step() -> None:
    engine = fake_engine(32, batch_policy="continuous")
    engine.add(job(0, prompt=5, output=4))
    engine.add(job(1, prompt=6, output=2))
    steps = [engine.step(), engine.step()]
    engine.add(job(2, prompt=7, output=3))
    steps += run(engine)
    assert work([step for step in steps if step]) == [(11, 0), (0, 2), (7, 1), (0, 2), (0, 1)]


def test_continuous_bounds_prefill_by_the_budget_and_decodes_beside_it() -> None:
    engine = fake_engine(32, batch_policy="continuous", max_batch_tokens=20)
    steps = run(engine, *(job(i, prompt=10, output=4) for i in range(3)))
    assert work(steps) == [(20, 0), (10, 2), (0, 3), (0, 3), (0, 1)]


def test_continuous_lets_one_prompt_in_however_long() -> None:
    engine = fake_engine(32, batch_policy="continuous", max_batch_tokens=8)
    steps = run(engine, job(0, prompt=30, output=1), job(1, prompt=4, output=1), job(2, prompt=4, output=1))
    assert work(steps) == [(30, 0), (8, 0)]


def test_chunked_gives_the_budget_to_decodes_then_prefills_in_flight_then_newcomers() -> None:
    engine = fake_engine(32, batch_policy="chunked", max_batch_tokens=6)
    steps = run(engine, job(0, prompt=8, output=4), job(1, prompt=10, output=2), job(2, prompt=3, output=1))
    # 0: 6 + 2 │ 1: 4 beside the last piece of 0, then 5, then 1 │ 2: 3 in the same step as the last piece of 1
    assert work(steps) == [(6, 0), (6, 0), (5, 1), (4, 1), (0, 2)]
    assert [step.admissions for step in steps] == [1, 1, 0, 1, 0]


def test_chunked_with_more_decodes_than_budget_serves_the_first_arrived() -> None:
    engine = fake_engine(32, batch_policy="chunked", max_batch_tokens=2)
    run(engine, *(job(i, prompt=1, output=3) for i in range(3)))
    # steps 1–2: 0 and 1 prefill and decode; 2 prefills only once they have finished
    records = by_id(engine)
    assert [records[i].e2e_s for i in range(3)] == [3, 3, 6]


def test_static_starts_a_batch_only_when_the_one_before_is_wholly_done() -> None:
    engine = fake_engine(32, batch_policy="static", max_sequences=2)
    steps = run(engine, job(0, prompt=4, output=2), job(1, prompt=4, output=5), job(2, prompt=6, output=2))
    assert work(steps) == [(8, 0), (0, 2), (0, 1), (0, 1), (0, 1), (6, 0), (0, 1)]
    records = by_id(engine)
    assert [records[i].e2e_s for i in range(3)] == [2, 5, 7]


def test_static_keeps_blocks_of_finished_members_until_the_batch_is_over() -> None:
    engine = fake_engine(32, batch_policy="static")
    steps = run(engine, job(0, prompt=16, output=1), job(1, prompt=2, output=3), job(2, prompt=4, output=1))
    blocks = [step.kv_bytes_used // 64 for step in steps]
    assert blocks == [4 + 1 + 1, 4 + 1 + 1, 4 + 1 + 1]
    assert engine.manager.stats().blocks_used == 0


def test_static_computes_its_prompts_whole_in_as_many_steps_as_the_budget_asks_for() -> None:
    engine = fake_engine(64, batch_policy="static", max_batch_tokens=16)
    steps = run(engine, *(job(i, prompt=n, output=2) for i, n in enumerate((8, 8, 30, 4))))
    assert work(steps) == [(16, 0), (30, 0), (4, 0), (0, 4)]
    assert [step.admissions for step in steps] == [4, 0, 0, 0]
    assert [step.active_sequences for step in steps] == [4] * 4
    assert [step.batch_size for step in steps] == [2, 1, 1, 4]


def test_static_gives_back_finished_members_before_it_preempts_a_running_one() -> None:
    engine = fake_engine(4, batch_policy="static")
    steps = run(engine, job(0, prompt=8, output=1), job(1, prompt=4, output=10))
    assert sum(step.preemptions for step in steps) == 0
    records = by_id(engine)
    assert records[1].output_tokens == 10


def test_static_requeues_a_preempted_member_for_the_next_batch() -> None:
    engine = fake_engine(5, batch_policy="static")
    steps = run(engine, job(0, prompt=4, output=10), job(1, prompt=4, output=10))
    records = by_id(engine)
    assert sum(step.preemptions for step in steps) == records[1].preemptions == 1
    assert [records[i].output_tokens for i in range(2)] == [10, 10]


@pytest.mark.parametrize("policy", ["static", "continuous", "chunked"])
def test_max_sequences_bounds_the_seats(policy: str) -> None:
    engine = fake_engine(64, batch_policy=policy, max_sequences=3)
    steps = run(engine, *(job(i, prompt=3, output=1 + i % 4) for i in range(10)))
    assert max(step.active_sequences for step in steps) == 3


@pytest.mark.parametrize("policy", ["continuous", "chunked"])
def test_max_utilization_packs_and_preempts_where_guaranteed_no_evict_promises_and_waits(policy: str) -> None:
    """8 blocks; each request is 1 block at first and 4 (4 + 13 − 1 slots) in the end."""
    load = [job(i, prompt=4, output=13) for i in range(4)]
    packed = fake_engine(8, batch_policy=policy)
    steps = run(packed, *load)
    assert steps[0].admissions == 4
    assert sum(step.preemptions for step in steps) > 0
    promised = fake_engine(8, batch_policy=policy, admission="guaranteed-no-evict")
    steps = run(promised, *load)
    assert [step.active_sequences for step in steps] == [2] * 26
    assert steps[0].reserved_slots == 2 * 3 * 4
    assert sum(step.preemptions for step in steps) == 0
    assert packed.take_outputs() == promised.take_outputs()


def test_every_policy_name_of_the_settings_is_registered_and_builds() -> None:
    registries: dict[str, dict[str, str]] = {
        "batch_policy": BATCH_POLICIES, "admission": ADMISSION_POLICIES, "victim": VICTIM_POLICIES, "order": ORDERS,
    }  # fmt: skip
    for field, registry in registries.items():
        assert set(EngineSettings.model_fields[field].annotation.__args__) == set(registry)  # type: ignore[union-attr]
    plain = EngineSettings()
    manager = NaiveManager(cache_settings(plain, 8, 64))
    for name in BATCH_POLICIES:
        batch_policy(name)
    for name in ADMISSION_POLICIES:
        admission_policy(manager, plain.model_copy(update={"admission": name}))
    for name in VICTIM_POLICIES:
        victim_policy(manager, plain.model_copy(update={"victim": name}))
    for name in ORDERS:
        order_of(name, manager)
    with pytest.raises(UsageError, match="unknown batch policy 'greedy'"):
        batch_policy("greedy")
