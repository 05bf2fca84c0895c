"""Weights by dtype, the tensor-parallel split, and the budget that must add up."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.errors import UsageError
from kvbench.geometry.budget import BOOKS_BYTES_PER_BLOCK, Load, budget_of, table_bytes
from kvbench.geometry.memory import kv_bytes_per_token, pool_layout
from kvbench.geometry.parallel import kv_replication, split
from kvbench.geometry.presets import preset, preset_names
from kvbench.geometry.weights import parameter_count, weight_bytes, weight_bytes_by_part, weights_of

GIB = 1 << 30


@pytest.mark.parametrize("name", preset_names())
@pytest.mark.parametrize(("dtype", "each"), [("fp32", 4), ("fp16", 2), ("bf16", 2)])
def test_float_weights_are_the_count_times_their_size(name: str, dtype: str, each: int) -> None:
    assert weight_bytes(preset(name), dtype) == preset(name).parameters * each  # type: ignore[operator]


def test_fp8_weights_keep_embeddings_norms_and_head_at_16_bits() -> None:
    """Llama-3.1-8B by hand: linear layers one byte and a float32 per output row, the rest two bytes."""
    rows_columns = [(4096, 4096), (1024, 4096), (1024, 4096), (4096, 4096), (2 * 14_336, 4096), (4096, 14_336)]
    linear = 32 * sum(r * c + 4 * r for r, c in rows_columns)
    other = 2 * (2 * 128_256 * 4096 + 65 * 4096)
    assert weight_bytes(preset("llama-3.1-8b"), "fp8") == linear + other


def test_int4_weights_carry_one_scale_per_128_inputs() -> None:
    by_part = weight_bytes_by_part(preset("llama-3.1-8b"), "int4")
    mlp = 32 * (2 * 14_336 * (4096 // 2 + 2 * 32) + 4096 * (14_336 // 2 + 2 * 112))
    assert by_part["mlp"] == mlp


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp8_e4m3", "int8", "int4"])
def test_parts_sum_to_the_whole(dtype: str) -> None:
    for name in preset_names():
        assert sum(weight_bytes_by_part(preset(name), dtype).values()) == weight_bytes(preset(name), dtype)


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
def test_kv_of_all_ranks_is_the_whole_while_heads_divide(tp: int) -> None:
    g = preset("llama-3.1-8b")
    assert kv_bytes_per_token(split(g, tp), "bf16") * tp == kv_bytes_per_token(g, "bf16")
    assert kv_replication(g, tp) == 1


@pytest.mark.parametrize("tp", [16, 32])
def test_beyond_its_heads_kv_is_replicated(tp: int) -> None:
    """8 KV heads on 16 ranks: one head each, every head on two ranks."""
    g = preset("llama-3.1-8b")
    rank = split(g, tp)
    assert (rank.kv_heads, rank.groups[0].kv_heads) == (1, 1)
    assert kv_bytes_per_token(rank, "bf16") * tp == kv_bytes_per_token(g, "bf16") * kv_replication(g, tp)
    assert kv_replication(g, tp) == tp // 8


@pytest.mark.parametrize("tp", [2, 8, 16])
def test_a_latent_cache_is_whole_on_every_rank(tp: int) -> None:
    g = preset("deepseek-v3")
    assert kv_bytes_per_token(split(g, tp), "bf16") == 70_272
    assert kv_replication(g, tp) == tp


@pytest.mark.parametrize("name", preset_names())
@pytest.mark.parametrize("tp", [2, 4])
def test_ranks_hold_all_weights_and_replicate_only_what_must_be(name: str, tp: int) -> None:
    """Matrices divide exactly where dimensions do; norms, routers, row-parallel biases and down-projections repeat."""
    g = preset(name)
    rank = split(g, tp)
    whole = {w.name: w for w in weights_of(g)}
    repeated = ("norm", "router", "_a_proj", "o_proj.bias", "down.bias")
    for w in weights_of(rank):
        divides = not any(mark in w.name for mark in repeated)
        replicated_heads = w.name.split(".")[0] in ("k_proj", "v_proj") and g.kv_heads < tp
        if not replicated_heads:
            assert w.elements == whole[w.name].elements // (tp if divides else 1), w.name
    assert rank.parameters == parameter_count(rank)


@pytest.mark.parametrize(("name", "tp"), [("llama-3.1-8b", 3), ("qwen2.5-7b", 8), ("llama-3.1-8b", 64)])
def test_heads_that_do_not_divide_are_refused_with_what_does(name: str, tp: int) -> None:
    with pytest.raises(UsageError, match="query heads") as caught:
        split(preset(name), tp)
    assert "1, 2, 4" in (caught.value.hint or "")


def test_kv_heads_that_neither_divide_nor_replicate_are_refused() -> None:
    with pytest.raises(UsageError, match="4 KV heads"):
        split(preset("qwen2.5-7b"), 7)
    with pytest.raises(UsageError, match="not positive"):
        split(preset("qwen2.5-7b"), 0)


@given(
    memory=st.integers(0, 200 * GIB), headroom=st.integers(0, 20 * GIB), block=st.sampled_from([1, 4, 16, 64, 256]),
    name=st.sampled_from(preset_names()), dtype=st.sampled_from(["fp16", "int8", "int4"]),
)  # fmt: skip
def test_the_budget_adds_up_and_never_overspends(memory: int, headroom: int, block: int, name: str, dtype: str) -> None:
    b = budget_of(
        preset(name),
        memory,
        weight_dtype="bf16",
        kv_dtype=dtype,
        block_size=block,
        load=Load(),
        headroom_bytes=headroom,
    )
    parts = b.weights_bytes + b.runtime_bytes + b.table_bytes + b.headroom_bytes + b.kv_bytes
    assert parts == memory
    books = b.num_blocks * BOOKS_BYTES_PER_BLOCK
    if b.num_blocks:
        assert b.pool_bytes + books + b.layout.block_bytes <= b.kv_bytes
    one_more = (b.num_blocks + 1) * (b.layout.block_bytes + BOOKS_BYTES_PER_BLOCK) + b.layout.block_bytes
    assert one_more > b.kv_bytes


def test_table_bytes_are_the_arrays_of_the_engine() -> None:
    """64 sequences × 8192/16 int32 entries, staged twice, and 2048 int64 slots; six times for gemma's six tables."""
    one = 2 * 64 * 512 * 4 + 2048 * 8
    assert table_bytes(pool_layout(preset("llama-3.1-8b"), "bf16", 16), Load()) == one
    assert table_bytes(pool_layout(preset("gemma-3-12b"), "bf16", 16), Load()) == 6 * one


def test_smaller_blocks_pay_more_for_tables() -> None:
    sizes = [table_bytes(pool_layout(preset("llama-3.1-8b"), "bf16", b), Load(max_batch_tokens=0)) for b in (4, 16, 64)]
    assert sizes == [16 * sizes[2], 4 * sizes[2], sizes[2]]
