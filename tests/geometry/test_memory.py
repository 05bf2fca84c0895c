"""The arithmetic of `kvbench size` (docs/size.md), held to its published numbers and to closed formulas."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.errors import UsageError
from kvbench.geometry.memory import (
    block_bytes,
    group_blocks,
    kv_bytes_per_token,
    layer_block_bytes,
    mean_sequence_blocks,
    mean_tail_share,
    pool_layout,
    tail_waste,
)
from kvbench.geometry.model import LayerGroup, ModelGeometry
from kvbench.geometry.presets import preset, preset_names

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
DTYPES = ("fp32", "fp16", "bf16", "fp8_e4m3", "fp8_e5m2", "int8", "int4")


def _model(layers: int, kv_heads: int, head_dim: int) -> ModelGeometry:
    group = LayerGroup("full", tuple(range(layers)), kv_heads, head_dim, head_dim)
    base = preset("tiny-llama")
    return replace(base, num_layers=layers, kv_heads=kv_heads, head_dim=head_dim, groups=(group,))


def _hybrid(full: int, window: int, width: int = 8) -> ModelGeometry:
    base = _model(full + window, 2, 32)
    groups = (
        LayerGroup("full", tuple(range(full)), 2, 32, 32),
        LayerGroup("window", tuple(range(full, full + window)), 2, 32, 32, width),
    )
    return replace(base, groups=groups)


def test_gqa_of_32_layers_and_8_heads_takes_128_kib_a_token_and_1_gib_for_8192() -> None:
    g = preset("llama-3.1-8b")
    assert kv_bytes_per_token(g, "bf16") == 131_072 == 128 * KIB
    assert kv_bytes_per_token(g, "bf16") * 8192 == GIB


def test_mha_of_32_heads_takes_512_kib_a_token_and_4_gib_for_8192() -> None:
    g = preset("llama-2-7b")
    assert kv_bytes_per_token(g, "bf16") == 512 * KIB
    assert kv_bytes_per_token(g, "bf16") * 8192 == 4 * GIB


def test_80_layers_of_64_heads_take_two_and_a_half_mib_a_token() -> None:
    assert kv_bytes_per_token(_model(80, 64, 128), "fp16") == 2_621_440 == Fraction(5, 2) * MIB


def test_latent_cache_of_deepseek_v3_takes_70272_bytes_a_token() -> None:
    assert kv_bytes_per_token(preset("deepseek-v3"), "bf16") == 70_272 == 61 * (512 + 64) * 2


def test_eight_bit_dtypes_are_one_byte_and_int4_half_a_byte_plus_scales() -> None:
    g = preset("llama-3.1-8b")
    elements, scales = 32 * 8 * 256, 32 * 8 * 2 * 4
    for name in ("fp8_e4m3", "fp8_e5m2", "int8"):
        assert kv_bytes_per_token(g, name) == elements + scales
    assert kv_bytes_per_token(g, "int4") == elements // 2 + scales


def test_a_latent_vector_has_one_scale_not_two() -> None:
    assert kv_bytes_per_token(preset("deepseek-v3"), "int8") == 61 * (576 + 4)


@given(
    heads=st.integers(1, 16), dk=st.integers(1, 256), dv=st.integers(0, 256), block=st.integers(1, 256),
    dtype=st.sampled_from(DTYPES),
)  # fmt: skip
def test_a_layer_block_is_its_tensors_rounded_up_to_sixteen(
    heads: int, dk: int, dv: int, block: int, dtype: str
) -> None:
    """Against the layout written out tensor by tensor."""
    bits = {"fp32": 32, "fp16": 16, "bf16": 16, "int4": 4}.get(dtype, 8)
    total_bits = heads * block * dk * bits + heads * block * dv * bits
    if bits <= 8:
        total_bits += 32 * heads * block * (2 if dv else 1)
    expected = -(-total_bits // 128) * 16
    assert layer_block_bytes(LayerGroup("full", (0,), heads, dk, dv), dtype, block) == expected


def test_a_physical_block_is_all_layers_of_the_group() -> None:
    g = preset("llama-3.1-8b")
    assert block_bytes(g, "bf16", 16) == 16 * 131_072 == 2 * MIB


def test_block_size_zero_is_refused() -> None:
    with pytest.raises(UsageError, match="block size 0"):
        block_bytes(preset("tiny-llama"), "bf16", 0)


@given(length=st.integers(1, 10_000), block=st.integers(1, 256))
def test_tail_waste_fills_the_last_block(length: int, block: int) -> None:
    waste = tail_waste(length, block)
    assert 0 <= waste < block
    assert (length + waste) % block == 0


@pytest.mark.parametrize("block", [1, 4, 16, 64, 128])
def test_mean_tail_waste_is_half_a_block_less_half_a_slot(block: int) -> None:
    """Over lengths that fill whole periods of B, the mean is (B − 1)/2 and its share (B − 1)/(2 T̄)."""
    lengths = range(10 * block + 1, 30 * block + 1)
    mean = sum(lengths) / len(lengths)
    waste = sum(tail_waste(t, block) for t in lengths) / len(lengths)
    assert waste == (block - 1) / 2
    assert mean_tail_share(mean, block) == pytest.approx(waste / mean)
    assert block == 1 or mean_tail_share(mean, block) < (block - 1) / (2 * block)


@pytest.mark.parametrize(("tokens", "fit"), [(8192, 8), (8193, 7), (8176, 8), (1, 4096), (65_536, 1), (65_537, 0)])
def test_capacity_counts_whole_blocks_of_all_layers(tokens: int, fit: int) -> None:
    """8 GiB, block 16, 2 MiB a block: ⌊8 GiB / (⌈T/16⌉ · 2 MiB)⌋."""
    layout = pool_layout(preset("llama-3.1-8b"), "bf16", 16)
    blocks = 8 * GIB // layout.block_bytes
    assert (blocks, blocks // layout.sequence_blocks(tokens)) == (4096, fit)


def test_e48_a_window_group_is_capped_not_grown_with_the_prompt() -> None:
    """W = 8, chunk 8, prompt 400, block 4: ⌈(W − 1 + chunk)/B⌉ + 1 = 5 blocks, not 100."""
    group = LayerGroup("window", (0,), 1, 8, 8, window=8)
    assert group_blocks(group, 400, 4, chunk=8) == 5
    assert group_blocks(group, 4, 4, chunk=8) == 1


@given(window=st.integers(1, 40), chunk=st.integers(1, 20), block=st.integers(1, 16), start=st.integers(0, 100))
def test_a_window_cap_covers_every_alignment(window: int, chunk: int, block: int, start: int) -> None:
    """Naive twin: walk a sequence in chunks and count the blocks that the window and the step touch."""
    group = LayerGroup("window", (0,), 1, 8, 8, window=window)
    end = start + chunk
    needed = {token // block for token in range(max(0, start - window + 1), end)}
    assert len(needed) <= group_blocks(group, end, block, chunk)


@pytest.mark.parametrize("name", preset_names())
@pytest.mark.parametrize("dtype", DTYPES)
def test_sharing_a_pool_never_loses_a_byte_unreported(name: str, dtype: str) -> None:
    layout = pool_layout(preset(name), dtype, 16)
    token_bytes = kv_bytes_per_token(preset(name), dtype) * 16
    assert sum(p.used_bytes for p in layout.pieces) >= token_bytes
    assert layout.block_bytes * len(layout.pieces) == sum(p.used_bytes for p in layout.pieces) + layout.padding_bytes
    assert sum(p.layers for p in layout.pieces) == preset(name).num_layers


def test_gemma_shares_a_pool_of_eight_layer_blocks_without_padding() -> None:
    layout = pool_layout(preset("gemma-3-12b"), "bf16", 16)
    assert (layout.layers_per_block, len(layout.pieces), layout.padding_bytes) == (8, 6, 0)
    assert layout.block_bytes == 8 * 16 * 2 * 8 * 256 * 2


def test_padding_of_groups_that_do_not_divide_is_reported() -> None:
    """10 full and 52 window layers (gemma-3-27b's split): 1 + 6 tables of 10 layers, 8 of 70 layer slots empty.

    13 layers a block would leave only 3 slots empty, but in the full table, which is the one that grows.
    """
    layout = pool_layout(_hybrid(10, 52), "bf16", 16)
    assert (layout.layers_per_block, len(layout.pieces)) == (10, 7)
    assert layout.padding_share == pytest.approx(8 / 70)
    assert layout.sequence_padding_bytes(1600) == 2 * layout.block_bytes * 8 // 10


def test_the_cut_is_the_cheapest_of_all_for_a_long_sequence() -> None:
    """Naive twin: layers × blocks for every width, for 10 + 52 layers, window 8, block 16, 16,384 tokens."""

    def cost(width: int) -> int:
        return width * (-(-10 // width) * 1024 + -(-52 // width) * 2)

    allowed = [w for w in range(1, 53) if -(-10 // w) + -(-52 // w) <= 8]
    assert pool_layout(_hybrid(10, 52), "bf16", 16).layers_per_block == min(allowed, key=cost)


def test_groups_of_different_width_pad_the_narrow_one() -> None:
    g = _hybrid(4, 4)
    wide = replace(g.groups[1], kv_heads=4)
    layout = pool_layout(replace(g, groups=(g.groups[0], wide)), "bf16", 16)
    assert layout.block_bytes == 4 * layer_block_bytes(wide, "bf16", 16)
    assert layout.padding_share == pytest.approx(1 / 4)


@given(full=st.integers(1, 70), window=st.integers(1, 70))
def test_a_hybrid_never_takes_more_tables_than_allowed(full: int, window: int) -> None:
    assert len(pool_layout(_hybrid(full, window), "bf16", 16).pieces) <= 8


def test_hybrid_sequences_stop_growing_in_their_window_layers() -> None:
    """Gemma-3-12b, block 16: ⌈T/16⌉ for the full table and at most ⌈1024/16⌉ + 1 for each of five window tables."""
    layout = pool_layout(preset("gemma-3-12b"), "bf16", 16)
    assert layout.sequence_blocks(160) == 6 * 10
    assert layout.sequence_blocks(131_072) == 8192 + 5 * 65
    assert layout.longest_sequence(8192 + 5 * 65) == 131_072
    assert layout.longest_sequence(8192 + 5 * 65 - 1) == 131_072 - 16


def test_an_all_window_model_has_no_longest_sequence_once_the_window_fits() -> None:
    layout = pool_layout(preset("mistral-7b-v0.1"), "bf16", 16)
    assert layout.longest_sequence(4096 // 16 + 1) is None
    assert layout.longest_sequence(256) == 256 * 16


@given(blocks=st.integers(0, 5000), name=st.sampled_from(["llama-3.1-8b", "gemma-3-12b", "gpt-oss-20b", "deepseek-v3"]))
def test_the_longest_sequence_fits_and_one_block_more_does_not(blocks: int, name: str) -> None:
    layout = pool_layout(preset(name), "bf16", 16)
    longest = layout.longest_sequence(blocks)
    assert longest is not None
    assert layout.sequence_blocks(longest) <= blocks
    assert layout.sequence_blocks(longest + 1) > blocks


def test_mean_need_is_the_mean_of_whole_blocks() -> None:
    layout = pool_layout(preset("llama-3.1-8b"), "bf16", 16)
    assert mean_sequence_blocks(layout, [1, 16, 17, 32]) == Fraction(1 + 1 + 2 + 2, 4)
