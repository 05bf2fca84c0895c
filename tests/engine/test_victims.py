"""Who is preempted, and why everybody is served whoever it is."""

from __future__ import annotations

import pytest

from kvbench.cache.content import Content
from kvbench.engine.policies.registry import VICTIM_POLICIES
from tests.engine.fakes import by_id, fake_engine, honest_output, job, run

BOTH = pytest.mark.parametrize("manager", ["naive", "real"])
EVERY = pytest.mark.parametrize("victim", VICTIM_POLICIES)


def preempted_first(manager: str, victim: str, priorities: tuple[int, ...] = (0, 0, 0, 0)) -> int:
    """Who loses its blocks first: four decode in a pool of 10, request 0 longest and first, 3 shortest and last but
    one; 2 is last."""
    engine = fake_engine(10, manager=manager, victim=victim)
    prompts, arrivals = (13, 9, 5, 4), (-4.0, -3.0, -1.0, -2.0)
    for at in range(4):
        engine.add(job(at, prompts[at], output=12, arrival_s=arrivals[at], priority=priorities[at]))
    while True:
        step = engine.step()
        assert step is not None
        if step.preemptions:
            (gone,) = [sequence for sequence in engine.scheduler.waiting if sequence.preemptions]
            return gone.request_id


@BOTH
def test_each_policy_names_its_victim(manager: str) -> None:
    assert preempted_first(manager, "last-arrived") == 2
    assert preempted_first(manager, "first-arrived") == 0
    assert preempted_first(manager, "fewest-tokens") == 3
    assert preempted_first(manager, "priority", (5, 1, 2, 3)) == 1


@BOTH
def test_at_equal_priority_the_last_arrived_goes(manager: str) -> None:
    assert preempted_first(manager, "priority") == 2
    assert preempted_first(manager, "priority", (1, 0, 1, 0)) == 3


@BOTH
@EVERY
@pytest.mark.parametrize("policy", ["static", "continuous", "chunked"])
def test_everybody_is_served_whoever_is_preempted(manager: str, victim: str, policy: str) -> None:
    """Eight requests whose outputs outgrow a pool of 6 blocks, chunks of 5 tokens: no token is lost or doubled."""
    engine = fake_engine(6, manager=manager, batch_policy=policy, victim=victim, max_batch_tokens=5)
    load = [job(index, 3 + index % 4, output=16, priority=index % 3) for index in range(8)]
    steps = run(engine, *load)
    assert sum(step.preemptions for step in steps) > 0
    assert all(step.batch_size > 0 for step in steps)
    assert engine.take_outputs() == {one.request_id: honest_output(one) for one in load}
    assert len(steps) < 8 * 16 * 40


@BOTH
def test_the_only_one_that_decodes_may_be_the_victim(manager: str) -> None:
    """Request 0 decodes alone while 1 prefills a long prompt in pieces; 0 needs a block and is the victim. The step
    goes on with the prefill, and both end."""
    engine = fake_engine(9, manager=manager, victim="first-arrived", max_batch_tokens=3)
    load = [job(0, 3, output=8, arrival_s=-2.0), job(1, 28, output=2, arrival_s=-1.0)]
    steps = run(engine, *load)
    assert next(step for step in steps if step.preemptions).prefill_tokens > 0
    records = by_id(engine)
    assert (records[0].preemptions, records[1].preemptions) == (1, 0)
    assert engine.take_outputs() == {one.request_id: honest_output(one) for one in load}


@EVERY
def test_e34_alone_in_a_full_pool_is_an_error_whatever_the_victim(victim: str) -> None:
    """Two run and someone else holds 3 of 5 blocks: one is preempted, and the last one left ends with an error instead
    of preempting itself for ever."""
    engine = fake_engine(5, manager="naive", victim=victim)
    outside = engine.manager.commit(engine.manager.plan(Content(range(12)), 12))
    steps = run(engine, job(0, 3, output=9), job(1, 3, output=9))
    records = by_id(engine)
    assert {record.finish_reason for record in records.values()} == {"error"}
    assert all("no other sequence to preempt" in str(record.error) for record in records.values())
    assert sum(step.preemptions for step in steps) == 1
    engine.manager.release(outside.row)
    assert engine.manager.stats().blocks_used == 0
