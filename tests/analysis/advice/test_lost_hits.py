"""Hits lost to coarser blocks against the simulated prefix cache and against every token of every prompt."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbench.analysis.advice.block_fronts import block_fronts
from kvbench.analysis.advice.lengths import LengthSample, Shared
from kvbench.analysis.advice.lost_hits import hit_bound, shared_fronts
from kvbench.analysis.advice.sources import from_trace
from kvbench.analysis.hits import hit_rates
from kvbench.workload.request import Request, Segment
from kvbench.workload.types import Workload
from tests.shared_data import shared_data
from tests.workload.helpers import FIXTURES, prompt_ids, synthetic
from tests.workload.helpers import from_trace as workload_of

_SHARING = {
    "groups": {"prefix": {"groups": 3, "tokens": 21}, "input_tokens": {"kind": "uniform", "low": 1, "high": 30}},
    "turns": {"sessions": {"turns": 4}, "input_tokens": 9, "output_tokens": 5},
    "tenants": {"prefix": {"groups": 2, "tokens": 40, "tenants": 2}, "input_tokens": 3},
}


def _sample_of(workload: Workload, block_tokens: int | None = None) -> LengthSample:
    requests = workload.requests
    inputs = np.array([r.input_tokens for r in requests])
    outputs = np.array([r.output_tokens for r in requests])
    shared = Shared(shared_fronts(requests), block_tokens)
    return LengthSample(inputs, outputs, "w", "trace", len(requests), shared=shared)


@pytest.mark.parametrize("name", _SHARING)
@pytest.mark.parametrize("block", [1, 4, 16, 32])
def test_hits_are_those_of_a_cache_that_never_evicts(name: str, block: int) -> None:
    workload = synthetic(requests=40, **_SHARING[name])
    found = hit_bound(_sample_of(workload), block)
    assert found is not None
    bound, cached = hit_rates(workload, block, ["lru"], [100_000])
    assert (found.hit_tokens, found.hit_rate) == (bound.hit_tokens, bound.hit_rate)
    assert cached.hit_tokens == found.hit_tokens
    exact = hit_rates(workload, 1, ["lru"], [100_000])[0]
    assert found.lost_tokens == exact.hit_tokens - found.hit_tokens
    assert found.lost_share == pytest.approx(found.lost_tokens / exact.queries_tokens)


def test_hits_are_those_of_a_comparison_token_by_token() -> None:
    workload = synthetic(requests=25, prefix={"groups": 2, "tokens": 19}, input_tokens=6, outputs="sampled")
    prompts = [prompt_ids(workload, request) for request in workload.requests]
    for block in (1, 4, 8):
        expected = 0
        for number, prompt in enumerate(prompts):
            fronts = [
                next(
                    (at for at, pair in enumerate(zip(prompt, other, strict=False)) if pair[0] != pair[1]), len(prompt)
                )
                for other in prompts[:number]
            ]
            expected += min(max(fronts, default=0), len(prompt) - 1) // block * block
        found = hit_bound(_sample_of(workload), block)
        assert found is not None
        assert found.hit_tokens == expected


def test_the_last_prompt_token_is_computed_even_where_all_is_shared() -> None:
    shared = Shared(np.array([0, 32]), None)
    found = hit_bound(LengthSample(np.array([32, 32]), np.array([1, 1]), "x", "trace", 2, shared=shared), 16)
    assert found is not None
    assert (found.hit_tokens, found.lost_tokens) == (16, 15)


@pytest.mark.parametrize("name", ["mooncake.jsonl", "bailian.jsonl", "own.jsonl"])
def test_a_trace_that_records_sharing_gives_the_hits_of_its_workload(name: str) -> None:
    workload = workload_of(FIXTURES / name)
    sample = from_trace(
        FIXTURES / name, outputs="32" if name == "own.jsonl" else None
    )  # it does not record all of them
    for block in (8, 16, 512):
        found, bound = hit_bound(sample, block), hit_rates(workload, block, ["lru"])[0]
        assert (0 if found is None else found.hit_tokens) == bound.hit_tokens
        assert found is None or found.sharing == workload.sharing_label(block)


@given(st.data())
@settings(max_examples=80, deadline=None)
def test_fronts_of_block_ids_are_those_of_a_tree_of_requests(data: st.DataObject) -> None:
    block = data.draw(st.integers(1, 4))
    prompts = data.draw(
        st.lists(st.tuples(st.integers(1, 12), st.lists(st.integers(0, 1), min_size=12, max_size=12)), max_size=12)
    )
    prompts = [(tokens, ids[: -(-tokens // block)]) for tokens, ids in prompts]
    salts = data.draw(st.lists(st.sampled_from([None, "a"]), min_size=len(prompts), max_size=len(prompts)))
    requests = [
        Request(
            number,
            tokens,
            1,
            tuple(Segment(i, 0, min(block, tokens - at * block)) for at, i in enumerate(ids)),
            salt=salt,
        )
        for number, ((tokens, ids), salt) in enumerate(zip(prompts, salts, strict=True))
    ]
    stored = data.draw(st.permutations(range(len(prompts))))
    order = np.argsort(np.array(stored, dtype=np.int64))
    flat = np.array([one for at in stored for one in prompts[at][1]], dtype=np.int64)
    starts = np.cumsum([0, *(len(prompts[at][1]) for at in stored)])
    inputs = np.array([tokens for tokens, _ in prompts], dtype=np.int64)
    spaces = np.array([salt is not None for salt in salts], dtype=np.int64)
    assert block_fronts(flat, starts, order, inputs, block, spaces).tolist() == shared_fronts(requests).tolist()


def test_the_conversations_of_mooncake_share_what_their_workload_shares() -> None:
    path = shared_data("traces/mooncake/conversation_trace.jsonl")
    found = from_trace(path, limit=2000)
    assert found.shared is not None
    assert found.shared.tokens.tolist() == shared_fronts(workload_of(path, limit=2000).requests).tolist()


def test_where_no_sharing_is_recorded_nothing_is_claimed_about_hits() -> None:
    assert hit_bound(from_trace(FIXTURES / "azure2023.csv"), 16) is None
