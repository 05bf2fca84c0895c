from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbench.workload.request import Request, Segment
from kvbench.workload.sharing import explainable_hit_tokens, runs, shared_prefix_tokens
from kvbench.workload.types import ImportReport, Workload
from tests.workload.helpers import FIXTURES, from_trace, naive_hit_tokens, synthetic


def _workload(*prompts: tuple[Segment, ...], salts: tuple[str | None, ...] = ()) -> Workload:
    requests = tuple(
        Request(
            request_id=number,
            input_tokens=sum(segment.length for segment in prompt),
            output_tokens=1,
            prompt=prompt,
            salt=salts[number] if salts else None,
        )
        for number, prompt in enumerate(prompts)
    )
    return Workload(requests, ImportReport("test", "test"), "", 0)


@pytest.mark.parametrize("block_size", [1, 3, 16, 64])
def test_m20_bound_equals_a_token_by_token_account(block_size: int) -> None:
    """The hits that a cold cache may show are those that the workload explains, no more and no less."""
    for workload in (
        synthetic(requests=30, sessions={"turns": 5}, prefix={"groups": 3, "tokens": 37}, input_tokens=29),
        synthetic(requests=20, prefix={"groups": 2, "tokens": 64}, max_input_tokens=50),
        synthetic(requests=20),
        from_trace(FIXTURES / "mooncake.jsonl", scale_tokens="1/16"),
        from_trace(FIXTURES / "own.jsonl"),
    ):
        vocab_size = 10**9
        assert explainable_hit_tokens(workload, block_size) == naive_hit_tokens(workload, block_size, vocab_size)


@pytest.mark.parametrize(("block_size", "vocab_size"), [(1, 50), (1, 2048), (2, 16), (16, 2), (4, 3)])
def test_m20_equal_tokens_by_chance_are_explained_too(block_size: int, vocab_size: int) -> None:
    """At block size 1 two unrelated prompts begin with the same token now and then: no contamination."""
    workload = synthetic(requests=120, input_tokens=24, output_tokens=3, prefix={"groups": 4, "tokens": 7})
    expected = naive_hit_tokens(workload, block_size, vocab_size)
    assert explainable_hit_tokens(workload, block_size, vocab_size) == expected
    assert explainable_hit_tokens(workload, block_size, vocab_size) >= explainable_hit_tokens(workload, block_size)


def test_m20_a_workload_without_sharing_explains_nothing() -> None:
    assert explainable_hit_tokens(synthetic(requests=50), 16, 2048) == 0


def test_salts_keep_tenants_apart() -> None:
    prompt = (Segment(1, 0, 32),)
    assert explainable_hit_tokens(_workload(prompt, prompt), 16) == 32
    assert explainable_hit_tokens(_workload(prompt, prompt, salts=("a", "b")), 16) == 0
    assert explainable_hit_tokens(_workload(prompt, prompt, salts=(None, "b")), 16) == 0


def test_touching_pieces_of_a_stream_are_one_run() -> None:
    cut = (Segment(1, 0, 5), Segment(1, 5, 0), Segment(1, 5, 11), Segment(2, 0, 3))
    assert runs(cut) == [Segment(1, 0, 16), Segment(2, 0, 3)]
    assert shared_prefix_tokens(_workload((Segment(1, 0, 20),), cut).requests).tolist() == [0, 16]


_PIECES = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from([0, 4, 8]), st.integers(0, 9)), min_size=1, max_size=4
).filter(lambda pieces: any(length for _, _, length in pieces))


@settings(max_examples=150, deadline=None)
@given(prompts=st.lists(_PIECES, min_size=1, max_size=8), block_size=st.integers(1, 9))
def test_any_segments_give_the_token_by_token_account(
    prompts: list[list[tuple[int, int, int]]], block_size: int
) -> None:
    workload = _workload(*(tuple(Segment(*piece) for piece in prompt) for prompt in prompts))
    assert explainable_hit_tokens(workload, block_size) == naive_hit_tokens(workload, block_size, 10**9)


@settings(max_examples=60, deadline=None)
@given(
    prompts=st.lists(_PIECES, min_size=1, max_size=6),
    block_size=st.integers(1, 9),
    random=st.randoms(use_true_random=False),
)
def test_the_bound_does_not_depend_on_the_order_of_service(
    prompts: list[list[tuple[int, int, int]]], block_size: int, random: object
) -> None:
    segments = [tuple(Segment(*piece) for piece in prompt) for prompt in prompts]
    shuffled = list(segments)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    in_order = explainable_hit_tokens(_workload(*segments), block_size)
    assert in_order == explainable_hit_tokens(_workload(*shuffled), block_size)


def test_m55_sharing_below_the_block_of_the_trace_is_labelled_synthetic() -> None:
    """Block size 16 asked of a 512-token hash trace: `synthetic`; scaled by 1/16 the trace's block is 32."""
    workload = from_trace(FIXTURES / "mooncake.jsonl")
    assert workload.report.sharing_block_tokens == 512
    labels = {size: workload.sharing_label(size) for size in (16, 256, 512, 768, 1024)}
    assert labels == {16: "synthetic", 256: "synthetic", 512: "recorded", 768: "synthetic", 1024: "recorded"}
    scaled = from_trace(FIXTURES / "mooncake.jsonl", scale_tokens="1/16")
    assert (scaled.report.sharing_block_tokens, scaled.report.scale_tokens) == (32, "1/16")
    assert [scaled.sharing_label(size) for size in (16, 32, 64)] == ["synthetic", "recorded", "recorded"]
    assert "lengths and hash blocks are scaled by 1/16" in scaled.report.notes
    assert from_trace(FIXTURES / "azure2023.csv").sharing_label(16) == "none"
    assert synthetic(prefix={"groups": 2}).sharing_label(16) == "synthetic"
