"""The page of latent rows against the float64 reference, with everything NaN that must not be read or written."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton")

from kvbench.engine.attention.rule import PLAIN, ScoreRule
from kvbench.engine.kvstore.layout import ELEMENTS
from kvbench.engine.kvstore.scales import TensorScales
from kvbench.engine.kvstore.store import KVStore
from kvbench_kernels import reference
from kvbench_kernels.decode_triton import scratch_for
from kvbench_kernels.mla_triton import DEFAULT, Config, allowed, compile_spec, default_for, mla
from kvbench_kernels.specs import KernelShape
from kvbench_kernels.triton_runtime import NO_WINDOW
from tests.attention.batches import Paged, one_latent_layer, paged, slots_of
from tests.kernels.pools import flat_pool, rule_of

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
QUERIES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}
ROUNDING = {torch.float16: 2**-11, torch.bfloat16: 2**-9, torch.float32: 2**-22}
"""Of one weight, relative."""
SMALL = Config(rows=16, tile=16, warps=4, stages=1)
SPARE = 2
"""Rows of the output behind the last, which nobody may write."""


def latent(
    kv_dtype: str,
    block_size: int,
    contexts: list[int],
    queries: list[int] | None = None,
    *,
    heads: int = 5,
    dims: tuple[int, int] = (40, 24),
    rule: ScoreRule = PLAIN,
    tensor_scales: TensorScales | None = None,
) -> Paged:
    """`dims` = (elements of a row, rank)."""
    return paged(
        kv_dtype,
        block_size,
        (heads, 1),
        dims,
        contexts,
        queries,
        is_latent=True,
        rule=rule,
        tensor_scales=tensor_scales,
    )


def run(
    case: Paged,
    dtype: torch.dtype = torch.float32,
    splits: int = 1,
    config: Config | None = SMALL,
    *,
    is_decode: bool = True,
    window: int = NO_WINDOW,
) -> torch.Tensor:
    """The page's answer, float32 on the CPU; q is a part of wider rows of wider heads, of which the rest is NaN."""
    pool, rule = flat_pool(case), rule_of(case)
    tokens, heads, k_dim = case.q.shape
    q = torch.full((tokens, heads + 1, k_dim + 8), torch.nan, dtype=dtype)
    q[:, :heads, :k_dim] = case.q
    out = torch.full((tokens + SPARE, heads, pool.dims[2]), torch.nan, device=DEVICE)
    mla(
        q.to(DEVICE)[:, :heads, :k_dim],
        pool.data.to(DEVICE),
        None if pool.scales is None else pool.scales.to(DEVICE),
        pool.tables.to(DEVICE),
        pool.lengths.to(DEVICE),
        None if is_decode else torch.from_numpy(case.batch.query_starts).to(DEVICE),
        None if rule.sinks is None else rule.sinks.to(DEVICE),
        out[:-SPARE],
        window,
        rule.scale,
        rule.cap,
        rule.v_scale,
        *pool.dims,
        *pool.offsets,
        splits=splits,
        config=config,
        scratch=scratch_for(tokens, heads, pool.dims[2], splits, torch.device(DEVICE)).fill_(torch.nan),
    )
    assert out[-SPARE:].isnan().all()
    return out[:-SPARE].cpu()


def check(
    case: Paged,
    dtype: torch.dtype = torch.float32,
    splits: int = 1,
    config: Config | None = SMALL,
    *,
    is_decode: bool = True,
    window: int = NO_WINDOW,
) -> None:
    """Each weight is rounded once, and a result is a mean of values."""
    pool, rule = flat_pool(case), rule_of(case)
    rule = replace(rule, window=None if window == NO_WINDOW else window)
    starts = torch.from_numpy(case.batch.query_starts)
    parts = (pool.data, pool.scales, pool.tables, pool.lengths, pool.dims, pool.offsets, rule)
    expected = reference.prefill(case.q.to(dtype), starts, *parts)
    out = run(case, dtype, splits, config, is_decode=is_decode, window=window)
    error = (out - expected).abs().max().item()
    bound = max(k.abs().max().item() for k in case.keys if k.numel()) * (1.1 * ROUNDING[dtype] + 2e-6)
    assert error <= bound, (error, bound)


@pytest.mark.parametrize("query_dtype", QUERIES)
@pytest.mark.parametrize("kv_dtype", ELEMENTS)
def test_every_stored_form_and_query_dtype(kv_dtype: str, query_dtype: str) -> None:
    """Two tiles or more in every split but the last, a short sequence, and a slot of length 0."""
    check(latent(kv_dtype, 5, [0, 7, 85]), QUERIES[query_dtype], splits=3)


@pytest.mark.parametrize("kv_dtype", ["fp8_e4m3", "fp8_e5m2", "int8"])
def test_scales_of_whole_tensors(kv_dtype: str) -> None:
    check(latent(kv_dtype, 4, [30], tensor_scales=TensorScales((0.05,), (0.05,))), torch.float16, splits=2)


@pytest.mark.parametrize("kv_dtype", ["fp8_e4m3", "fp8_e5m2", "int8"])
@pytest.mark.parametrize("splits", [1, 2])
def test_small_values_keep_their_weights_in_fp16(kv_dtype: str, splits: int) -> None:
    """A scale of 1e-7 is below what fp16 can hold."""
    case = latent(kv_dtype, 16, [40])
    for view in case.store.pool.layers:
        view.v_scale[case.batch.block_tables[0, 0, :3].tolist()] *= 2**-9
    case.keys = [k * 2**-9 for k in case.keys]
    check(case, torch.float16, splits)


@pytest.mark.parametrize("block_size", [1, 3, 16, 17, 48, 256])
def test_k08_block_sizes_that_are_no_multiple_of_the_tile(block_size: int) -> None:
    contexts = [15, 16, 17, 2 * block_size + 1] if block_size < 256 else [255, 257]
    check(latent("int8", block_size, contexts), splits=2, config=replace(SMALL, tile=64 if block_size == 256 else 16))


@pytest.mark.parametrize(("heads", "rows"), [(1, 16), (16, 16), (20, 16), (20, 32), (70, 64)])
def test_heads_that_do_not_fill_their_tiles(heads: int, rows: int) -> None:
    check(latent("bf16", 16, [40, 9], heads=heads), splits=2, config=replace(SMALL, rows=rows))


@pytest.mark.parametrize("dims", [(20, 12), (40, 32), (72, 64), (24, 8), (112, 80), (576, 512)])
def test_k10_ranks_and_rests_that_are_padded(dims: tuple[int, int]) -> None:
    check(latent("fp16", 16, [35], dims=dims), torch.float16)


SINKS = torch.linspace(-3, 8, 5)


@pytest.mark.parametrize("rule", [ScoreRule(0.3, sinks=SINKS), ScoreRule(1.0, 2.5), ScoreRule(0.4, 2.5, -SINKS)])
@pytest.mark.parametrize("splits", [1, 3])
def test_sinks_and_caps(rule: ScoreRule, splits: int) -> None:
    check(latent("fp32", 5, [0, 70, 3], rule=rule), splits=splits)


@pytest.mark.parametrize(("window", "splits"), [(1, 1), (5, 8), (20, 1), (33, 3), (70, 2), (1000, 2)])
def test_k02_splits_that_a_window_leaves_empty(window: int, splits: int) -> None:
    """Only what is inside the window is cut; scratch that no split writes is NaN and stays out."""
    check(latent("fp32", 5, [90, 2, 40]), splits=splits, window=window)
    check(latent("fp32", 16, [70, 40], [9, 21]), window=window, is_decode=False)


def test_a_window_that_begins_one_past_the_start_of_a_tile() -> None:
    """Token 32 is the first of a tile and the last one that is not seen: the tile is not one that every row sees."""
    check(latent("fp32", 5, [70]), window=37)
    check(latent("fp32", 5, [70], [3]), window=37, is_decode=False)


@pytest.mark.parametrize("splits", [2, 3, 7, 40])
def test_k18_the_number_of_splits_does_not_change_the_answer(splits: int) -> None:
    case = latent("int8", 16, [130, 33])
    one = run(case, config=Config(16, 32, 4, 1))
    torch.testing.assert_close(run(case, splits=splits, config=Config(16, 32, 4, 1)), one, rtol=0, atol=2e-6)


def test_k01_a_slot_of_length_0_gives_zeros() -> None:
    case = latent("fp16", 16, [0, 37, 0], rule=ScoreRule(sinks=SINKS))
    for splits in (1, 2):
        out = run(case, torch.float16, splits)
        assert (out[[0, 2]] == 0).all()
        assert out.isfinite().all()


@pytest.mark.parametrize("kv_dtype", ["bf16", "int8"])
def test_a_piece_of_many_tokens_is_the_same_kernel(kv_dtype: str) -> None:
    """Prefill: pieces of 0, 1, tile − 1, tile and tile + 1 tokens, with prefixes of none, whole and partial blocks."""
    pieces = [(0, 0), (15, 15), (16, 16), (17, 17), (1, 1), (32 + 5, 5), (35, 2)]
    contexts, queries = ([pair[i] for pair in pieces] for i in (0, 1))
    check(latent(kv_dtype, 16, contexts, queries, heads=3), is_decode=False, config=Config(32, 16, 4, 1))


@pytest.mark.parametrize("before", [1, 20])
def test_rows_outside_the_pieces_are_left_alone(before: int) -> None:
    """`starts` may begin in the middle of q: what is before belongs to another kernel."""
    case = latent("fp32", 16, [9 + before, 20, 30], [before, 20, 10])
    starts, lengths = case.batch.query_starts, case.batch.context_lengths
    tables = case.batch.block_tables[:, 1:].copy()
    batch = replace(case.batch, query_starts=starts[1:], context_lengths=lengths[1:], block_tables=tables)
    out, whole = run(replace(case, batch=batch), is_decode=False), run(case, is_decode=False)
    assert out[:before].isnan().all()
    assert (out[before:] == whole[before:]).all()


def test_a_token_gets_the_same_bits_alone_or_in_a_piece() -> None:
    """Tiles of keys are counted from token 0."""
    case = latent("fp16", 16, [50], [4], heads=4)
    whole, alone = run(case, torch.float16, is_decode=False), []
    for i in range(4):
        lengths = case.batch.context_lengths - 3 + i
        one = replace(case, batch=replace(case.batch, context_lengths=lengths), q=case.q[i : i + 1])
        alone.append(run(one, torch.float16))
    torch.testing.assert_close(torch.cat(alone), whole, rtol=1e-6, atol=1e-6)


def test_k04_poison_around_what_is_read() -> None:
    """Unwritten tails, free blocks and the null block are NaN, and rows are masked, not only scores."""
    case = latent("fp16", 16, [33, 50, 1])
    assert case.store.pool.bytes.view(torch.float16).isnan().any()
    check(case, torch.float16, splits=2)


@pytest.mark.skipif(DEVICE != "cpu", reason="the pool is memory that is never touched")
def test_k05_offsets_beyond_two_to_the_31() -> None:
    """The last block of a 2.5 GiB pool of int8, its scales as well."""
    case = latent("int8", 256, [20], dims=(576, 512))
    store = KVStore(one_latent_layer(576, 512), "int8", 256, (5 << 29) // (256 * 580))
    case.batch.block_tables[0, 0, 0] = store.num_blocks
    case.store = store
    store.write(0, case.keys[0], case.values[0], slots_of(case.batch.block_tables[0, 0], 0, 20, 256))
    check(case)


def test_defaults_run() -> None:
    for heads, dtype in ((5, torch.bfloat16), (33, torch.float16), (2, torch.float32)):
        check(latent("fp32" if dtype == torch.float32 else "int8", 16, [40], heads=heads), dtype, config=None)


SHAPE = KernelShape("bf16", "bf16", False, 16, 128, 1, 576, 512, "hnd", 4, 100)


def test_what_cannot_run_is_refused() -> None:
    assert allowed(SHAPE, DEFAULT) is None
    assert "only KV head" in str(allowed(replace(SHAPE, kv_heads=2), DEFAULT))
    assert "front" in str(allowed(replace(SHAPE, v_dim=576), DEFAULT))
    assert "12" in str(allowed(SHAPE, Config(12, 32, 4, 2)))
    assert "16 heads" in str(allowed(replace(SHAPE, query_heads=16), Config(32, 32, 4, 2)))
    with pytest.raises(ValueError, match="not split"):
        run(latent("fp32", 16, [40], [20]), splits=2, is_decode=False)
    with pytest.raises(ValueError, match="16 heads"):
        run(latent("fp32", 16, [4], heads=16), config=Config(32, 16, 4, 2))


def test_a_launch_is_described_for_the_compiler() -> None:
    shape = replace(SHAPE, kv_dtype="int8", has_block_scales=True, has_sinks=True)
    spec = compile_spec(shape, default_for(shape))
    assert (spec.signature["data"], spec.signature["sinks"], spec.constexprs["starts"]) == ("*i8", "*fp32", None)
    assert {"q", "data", "out"} <= set(spec.divisible_by_16)
    assert "splits" not in set(spec.constexprs) | set(spec.divisible_by_16)
    assert compile_spec(replace(shape, query_tokens=64), default_for(shape)).signature["starts"] == "*i32"
