"""Hit rates by simulation against the engine's own counters, against bounds, and against brute force."""

from __future__ import annotations

import itertools
import random

import pytest

from kvbench.analysis.hit_bounds import arc_hits, bound_hits, optimum_hits
from kvbench.analysis.hit_caches import lru_hits
from kvbench.analysis.hit_sequences import number_blocks
from kvbench.analysis.hits import POLICIES, hit_rates, ladder
from kvbench.engine.job import Job
from kvbench.spec.workload import WorkloadSettings
from kvbench.workload.build import build_workload
from kvbench.workload.request import Request, Segment
from kvbench.workload.tokens import token_ids
from kvbench.workload.types import ImportReport, Workload
from tests.engine.fakes import VOCAB, fake_engine, run
from tests.shared_data import shared_data

BLOCK = 4
MAX_CONTEXT = 120


def workload_of(requests: list[Request]) -> Workload:
    return Workload(tuple(requests), ImportReport("made", "none"), "", seed=3)


def random_requests(seed: int, count: int = 60) -> Workload:
    """Few stems, so that prompts meet again, part inside blocks and at their ends, and are now and then the same to the
    last output token."""
    pick = random.Random(seed)
    requests: list[Request] = []
    while len(requests) < count:
        number = len(requests)
        if requests and pick.random() < 0.25:
            old = pick.choice(requests)
            turn = pick.random() < 0.5 and old.input_tokens < 60
            prompt = (*old.prompt, *(old.output or ())) if turn else old.prompt
            prompt = (*prompt, Segment(1000 + number, 0, pick.randint(1, 9))) if turn else prompt
            output = old.output if not turn else (Segment(2000 + number, 0, pick.randint(1, 12)),)
        else:
            stem = Segment(pick.randrange(3), 0, pick.choice([4, 8, 10, 16, 24]))
            prompt = (stem, Segment(1000 + number, 0, pick.choice([4, 6, 8]))) if pick.random() < 0.7 else (stem,)
            output = (Segment(2000 + number, 0, pick.choice([1, 2, 5, 8])),)
        assert output is not None
        sizes = (sum(s.length for s in prompt), sum(s.length for s in output))
        requests.append(
            Request(
                number,
                *sizes,
                prompt,
                output=output,
                salt=pick.choice([None, None, None, "s"]),
                priority=pick.randrange(3),
            )
        )
    return workload_of(requests)


def engine_hits(workload: Workload, capacity: int, **settings: object) -> int:
    """One request at a time through the real loop over the real books."""
    engine = fake_engine(
        capacity, manager="real", max_context=MAX_CONTEXT, batch_policy="continuous", max_batch_tokens=4096, **settings
    )
    engine._check = False  # once at the end will do
    hits = 0
    for request in workload.requests:
        prompt = token_ids(request.prompt, workload.seed, VOCAB)
        forced = token_ids(request.output or (), workload.seed, VOCAB)
        job = Job(
            request.request_id, prompt, request.output_tokens, forced, salt=request.salt, priority=request.priority
        )
        hits += sum(step.prefix_cache_hits for step in run(engine, job))
    engine.check_invariants()
    return hits


@pytest.mark.parametrize("index", ["hash", "radix"])
@pytest.mark.parametrize("policy", ["lru", "fifo", "lfu", "lrc", "lrc-age", "priority"])
def test_simulated_hits_are_those_of_the_engine_one_request_at_a_time(policy: str, index: str) -> None:
    for seed in range(3):
        workload = random_requests(seed, 40)
        for capacity in (12, 25, 45):
            weights = {"lrc_alpha": 3.0, "lrc_beta": 0.5} if policy == "lrc-age" else {}
            (_, found) = hit_rates(workload, BLOCK, [policy], [capacity], **weights)
            engine = engine_hits(workload, capacity, prefix_cache=index, eviction=policy, **weights)
            assert found.hit_tokens == engine, (seed, capacity)


def test_simulated_hits_are_those_of_the_engine_on_conversations() -> None:
    settings = {
        "requests": 60, "input_tokens": 7, "output_tokens": 6, "prefix": {"groups": 3, "tokens": 18},
        "sessions": {"turns": 4}, "seed": 5,
    }  # fmt: skip
    workload = build_workload(WorkloadSettings.model_validate(settings))
    for policy, capacity in itertools.product(("lru", "lfu", "lrc"), (30, 45)):
        (_, found) = hit_rates(workload, BLOCK, [policy], [capacity])
        engine = engine_hits(workload, capacity, prefix_cache="hash", eviction=policy)
        assert found.hit_tokens == engine > 0


def test_no_policy_beats_the_optimum_and_nothing_beats_the_bound() -> None:
    for seed in range(6):
        sequences = number_blocks(random_requests(seed, 100).requests, BLOCK)
        rates = hit_rates(random_requests(seed, 100), BLOCK)
        bound = rates[0].hit_tokens
        assert bound == bound_hits(sequences) * BLOCK
        for _, group in itertools.groupby(rates[1:], key=lambda rate: rate.capacity_blocks):
            found = {rate.policy: rate.hit_tokens for rate in group}
            assert set(found) == set(POLICIES)
            assert max(found.values()) == found["min"] <= bound


def test_the_optimum_is_the_best_of_all_choices_of_victims() -> None:
    """Brute force over every set of contents that could be kept after every request, on tiny workloads."""
    for seed in range(40):
        pick = random.Random(seed)
        requests = []
        for number in range(6):
            stem = Segment(pick.randrange(3), 0, BLOCK * pick.randint(1, 3))
            requests.append(
                Request(number, stem.length + 1, 1, (stem, Segment(50 + number, 0, 1)), output=(Segment(90, 0, 1),))
            )
        sequences = number_blocks(requests, BLOCK)
        for capacity in (4, 5, 6):
            assert optimum_hits(sequences, capacity) == best_of_all(sequences, capacity), (seed, capacity)


def best_of_all(sequences, capacity: int) -> int:
    states: dict[frozenset[int], int] = {frozenset(): 0}
    for asked in sequences.requests:
        after: dict[frozenset[int], int] = {}
        for cached, hits in states.items():
            found = 0
            for content in asked.contents[: asked.lookups]:
                if content not in cached:
                    break
                found += 1
            others = cached - set(asked.contents)
            for size in range(min(len(others), capacity - asked.blocks) + 1):
                for kept in itertools.combinations(sorted(others), size):
                    state = frozenset((*kept, *asked.contents))
                    after[state] = max(after.get(state, 0), hits + found)
        states = after
    return max(states.values())


def test_arc_resists_a_scan_that_lru_does_not() -> None:
    """Two prompts that come back and again, and a long run of others between them."""
    requests: list[Request] = []
    for turn in range(400):
        stream = turn % 2 if turn % 20 < 6 else 100 + turn
        requests.append(Request(turn, 9, 1, (Segment(stream, 0, 9),), output=(Segment(90, 0, 1),)))
    sequences = number_blocks(requests, BLOCK)
    assert arc_hits(sequences, 12) > lru_hits(sequences, 12)


def test_requests_that_never_fit_are_rejected_as_the_engine_does() -> None:
    workload = random_requests(7)
    for rate in hit_rates(workload, BLOCK, ["lru", "min", "lfu", "arc"], [6])[1:]:
        served = [r for r in workload.requests if -(-(r.input_tokens + r.output_tokens - 1) // BLOCK) <= 6]
        assert rate.rejected == len(workload.requests) - len(served) > 0
        assert rate.queries_tokens == sum(r.input_tokens for r in served)
    found = hit_rates(workload, BLOCK, ["lru"], [6])[1].hit_tokens
    assert found == engine_hits(workload, 6, prefix_cache="hash")


def test_the_ladder_climbs_from_the_longest_request_to_all_blocks() -> None:
    sequences = number_blocks(random_requests(1).requests, BLOCK)
    found = ladder(sequences)
    assert found == sorted(set(found))
    assert (found[0], found[-1]) == (sequences.longest, sequences.distinct)
    assert ladder(number_blocks([], BLOCK)) == [1]


def test_recorded_traffic_in_seconds() -> None:
    """Mooncake's conversations by their own blocks: the known bound of what its hash ids repeat."""
    path = shared_data("traces/mooncake/conversation_trace.jsonl")
    settings = {"source": "trace", "trace": str(path), "arrival": {"kind": "recorded"}, "limit": 3000}
    workload = build_workload(WorkloadSettings.model_validate(settings))
    bound, lru, best = hit_rates(workload, 512, ["lru", "min"], [2000])
    assert lru.hit_rate < best.hit_rate < bound.hit_rate
