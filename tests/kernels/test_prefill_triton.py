"""The prefill page against the float64 reference, on the device that is there or in Triton's interpreter. Everything
that must not be read or written is NaN: unwritten slots, free blocks, the null block, what lies before a window, and
the output."""

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
from kvbench_kernels.prefill_triton import DEFAULT, Config, allowed, compile_spec, prefill
from kvbench_kernels.specs import KernelShape
from kvbench_kernels.triton_runtime import NO_WINDOW
from tests.attention.batches import Paged, one_layer, paged, slots_of
from tests.kernels.pools import flat_pool, rule_of

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
QUERIES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}
ROUNDING = {torch.float16: 2**-11, torch.bfloat16: 2**-9, torch.float32: 2**-22}
"""Of one weight, relative."""
SMALL = Config(rows=32, tile=16, warps=4, stages=1)
SPARE = 3
"""Rows of the output behind the last, which nobody may write."""


def run(case: Paged, dtype: torch.dtype, config: Config = SMALL) -> torch.Tensor:
    """The page's answer, float32 on the CPU; what it left alone is NaN. q is a part of wider rows of wider heads, of
    which the rest is NaN."""
    pool, rule = flat_pool(case), rule_of(case)
    tokens, heads, k_dim = case.q.shape
    q = torch.full((tokens, heads + 1, k_dim + 8), torch.nan, dtype=dtype)
    q[:, :heads, :k_dim] = case.q
    out = torch.full((case.q.shape[0] + SPARE, case.q.shape[1], pool.dims[2]), torch.nan, device=DEVICE)
    prefill(
        q.to(DEVICE)[:, :heads, :k_dim],
        pool.data.to(DEVICE),
        None if pool.scales is None else pool.scales.to(DEVICE),
        pool.tables.to(DEVICE),
        pool.lengths.to(DEVICE),
        torch.from_numpy(case.batch.query_starts).to(DEVICE),
        None if rule.sinks is None else rule.sinks.to(DEVICE),
        out[:-SPARE],
        NO_WINDOW if rule.window is None else rule.window,
        rule.scale,
        rule.cap,
        rule.v_scale,
        *pool.dims,
        *pool.offsets,
        config=config,
    )
    assert out[-SPARE:].isnan().all()
    return out[:-SPARE].cpu()


def expected(case: Paged, dtype: torch.dtype) -> torch.Tensor:
    pool = flat_pool(case)
    starts = torch.from_numpy(case.batch.query_starts)
    parts = (pool.data, pool.scales, pool.tables, pool.lengths, pool.dims, pool.offsets, rule_of(case))
    return reference.prefill(case.q.to(dtype), starts, *parts)


def bound(case: Paged, dtype: torch.dtype) -> float:
    """Each weight is rounded once, and a result is a mean of values."""
    largest = max((v.abs().max().item() for v in case.values if v.numel()), default=0.0)
    return largest * (1.1 * ROUNDING[dtype] + 2e-6)


def check(case: Paged, dtype: torch.dtype = torch.float32, config: Config = SMALL) -> None:
    error = (run(case, dtype, config) - expected(case, dtype)).abs().max().item()
    assert error <= bound(case, dtype), (error, bound(case, dtype))


@pytest.mark.parametrize("query_dtype", QUERIES)
@pytest.mark.parametrize("kv_dtype", ELEMENTS)
def test_every_stored_form_and_query_dtype(kv_dtype: str, query_dtype: str) -> None:
    """A slot of length 0, a lone token, a whole prompt and a chunk with its prefix, in blocks of 5."""
    check(paged(kv_dtype, 5, (6, 2), (24, 40), [0, 7, 19, 37], [1, 1, 19, 11]), QUERIES[query_dtype])


@pytest.mark.parametrize("kv_dtype", ["fp8_e4m3", "fp8_e5m2", "int8"])
def test_scales_of_whole_tensors(kv_dtype: str) -> None:
    scales = TensorScales((0.05,), (0.9,))
    check(paged(kv_dtype, 4, (4, 2), (16, 16), [30], [20], tensor_scales=scales), torch.float16)


@pytest.mark.parametrize("query_dtype", ["fp16", "bf16"])
def test_k16_e5m2_is_cast_before_the_product(query_dtype: str) -> None:
    """fp8 operands of another form than the query's are converted, not handed to the matrix product."""
    check(paged("fp8_e5m2", 16, (2, 2), (32, 32), [33], [17]), QUERIES[query_dtype])


@pytest.mark.parametrize("kv_dtype", ["fp8_e4m3", "fp8_e5m2", "int8"])
def test_small_values_keep_their_weights_in_fp16(kv_dtype: str) -> None:
    """A V scale of 1e-7 is below what fp16 can hold."""
    case = paged(kv_dtype, 16, (2, 1), (32, 32), [40], [9])
    for view in case.store.pool.layers:
        view.v_scale[case.batch.block_tables[0, 0, :3].tolist()] *= 2**-9
    case.values = [v * 2**-9 for v in case.values]
    check(case, torch.float16)


PIECES = [(0, 0), (15, 15), (16, 16), (17, 17), (1, 1), (21, 5), (0, 0), (16 + 33, 33)]
"""(context, piece) around a tile of 16 keys and 16 tokens of queries, empty pieces among them."""


@pytest.mark.parametrize("kv_layout", ["hnd", "nhd"])
@pytest.mark.parametrize("block_size", [1, 3, 16, 17, 48, 256])
def test_k08_block_sizes_that_are_no_multiple_of_the_tile(block_size: int, kv_layout: str) -> None:
    """Prefixes of 0 tokens, of whole blocks and of parts of one."""
    pieces = [*PIECES, (2 * block_size + 3, 3), (2 * block_size + 6, 4)]
    config = replace(SMALL, tile=64) if block_size == 256 else SMALL
    contexts, queries = ([pair[i] for pair in pieces] for i in (0, 1))
    check(paged("int8", block_size, (4, 2), (16, 16), contexts, queries, kv_layout=kv_layout), config=config)


@pytest.mark.parametrize(("heads", "rows"), [((1, 1), 16), ((7, 1), 16), ((12, 2), 64), ((3, 3), 32), ((40, 2), 16)])
def test_query_heads_of_a_kv_head_share_a_tile(heads: tuple[int, int], rows: int) -> None:
    """Also where the rows of a tile end in the middle of a token's heads, or hold no whole token."""
    check(paged("bf16", 16, heads, (16, 16), [40, 9], [9, 9]), config=replace(SMALL, rows=rows))


@pytest.mark.parametrize("dims", [(40, 40), (72, 72), (80, 80), (96, 96), (112, 112), (192, 128), (256, 256)])
def test_k10_head_dims_that_are_padded(dims: tuple[int, int]) -> None:
    check(paged("fp16", 16, (2, 2), dims, [35], [18]), torch.float16)


SINKS = torch.linspace(-3, 8, 4)
RULES = {
    "plain": (None, PLAIN),
    "window 1": (1, PLAIN),
    "window 5": (5, PLAIN),
    "window 20": (20, ScoreRule(0.5)),
    "window that begins one past the start of a tile": (37, PLAIN),
    "window as the context": (70, PLAIN),
    "window beyond the context": (1000, PLAIN),
    "sinks": (None, ScoreRule(0.3, sinks=SINKS)),
    "cap": (None, ScoreRule(1.0, 2.5)),
    "everything": (20, ScoreRule(0.4, 2.5, -SINKS)),
}


@pytest.mark.parametrize("block_size", [5, 32])
@pytest.mark.parametrize("name", RULES)
def test_windows_sinks_and_caps(name: str, block_size: int) -> None:
    """Blocks before a window are not in the table, and its tokens are NaN."""
    window, rule = RULES[name]
    check(paged("fp32", block_size, (4, 2), (16, 16), [70, 64, 3], [34, 1, 3], window=window, rule=rule))


def test_k01_a_slot_of_length_0_gives_zeros() -> None:
    """Pad slots have one query and no context; with sinks as well."""
    case = paged("fp16", 16, (4, 2), (16, 16), [0, 7, 0], rule=ScoreRule(sinks=SINKS))
    out = run(case, torch.float16)
    assert (out[[0, 2]] == 0).all()
    check(case, torch.float16)


def test_k28_the_running_maximum_rises_and_falls() -> None:
    """Scores that grow with the token, and then ones that shrink, over five tiles."""
    for sign in (1.0, -1.0):
        case = paged("fp32", 16, (2, 1), (16, 16), [80], [20])
        keys = torch.linspace(-4, 4, 80)[:, None, None].expand(80, 1, 16).contiguous() * sign
        case.store.write(0, keys, case.values[0], slots_of(case.batch.block_tables[0, 0], 0, 80, 16))
        case.q.fill_(0.7)
        check(case)


@pytest.mark.parametrize("kv_dtype", ["bf16", "int8"])
@pytest.mark.parametrize("chunks", [[50], [1, 15, 16, 18], [33, 17], [7] * 7 + [1]])
def test_how_a_prompt_is_cut_does_not_change_the_answer(kv_dtype: str, chunks: list[int]) -> None:
    """A row's sums are in the same order in any chunk: the same to the last bits."""
    whole = paged(kv_dtype, 16, (4, 2), (16, 16), [50], [50])
    answers, end = [], 0
    for chunk in chunks:
        end += chunk
        batch = replace(whole.batch, query_starts=whole.batch.query_starts.copy())
        batch.query_starts[1], batch.context_lengths = chunk, whole.batch.context_lengths * 0 + end
        answers.append(run(Paged(whole.store, batch, whole.q[end - chunk : end], [], []), torch.bfloat16))
    torch.testing.assert_close(torch.cat(answers), run(whole, torch.bfloat16), rtol=1e-6, atol=1e-6)
    assert (torch.cat(answers) - expected(whole, torch.bfloat16)).abs().max() <= bound(whole, torch.bfloat16)


def test_tiles_of_any_size_agree() -> None:
    case = paged("int8", 17, (4, 2), (32, 32), [75, 40], [30, 3], window=33)
    for rows, tile in ((16, 16), (16, 64), (128, 32), (64, 128)):
        check(case, config=Config(rows, tile, 4, 1))


@pytest.mark.parametrize("before", [1, 20])
def test_rows_outside_the_pieces_are_left_alone(before: int) -> None:
    """`starts` may begin in the middle of q: what is before belongs to another kernel."""
    case = paged("fp16", 16, (2, 1), (16, 16), [9 + before, 20, 30], [before, 20, 10])
    batch = replace(
        case.batch,
        query_starts=case.batch.query_starts[1:],
        context_lengths=case.batch.context_lengths[1:],
        block_tables=case.batch.block_tables[:, 1:].copy(),
    )
    out = run(replace(case, batch=batch), torch.float16)
    assert out[:before].isnan().all()
    assert (out[before:] - expected(case, torch.float16)[before:]).abs().max() <= bound(case, torch.float16)


def test_k04_poison_around_what_is_read() -> None:
    """Unwritten tails, free blocks, the null block and what lies before the window are NaN; V is masked as well."""
    case = paged("fp16", 16, (2, 2), (16, 16), [33, 50, 1], [2, 50, 1], window=20)
    assert case.store.pool.bytes.view(torch.float16).isnan().any()
    assert run(case, torch.float16).isfinite().all()
    check(case, torch.float16)


@pytest.mark.parametrize("window", [None, 9])
def test_rows_read_no_tile_of_keys_that_they_do_not_see(window: int | None) -> None:
    """A NaN in the last token reaches the tile of rows that holds it; one before every window reaches none."""
    case = paged("fp16", 16, (1, 1), (16, 16), [48], [48], window=window)
    right, blocks = run(case, torch.float16, Config(16, 16, 4, 1)), case.batch.block_tables[0, 0]
    view = case.store.layers[0]
    view.v[blocks[2], :, 15] = torch.nan
    view.v[blocks[0], :, 0] = torch.nan if window else view.v[blocks[0], :, 0]
    out = run(case, torch.float16, Config(16, 16, 4, 1))
    begin = 16 if window else 0
    torch.testing.assert_close(out[begin:32], right[begin:32], rtol=0, atol=0)
    assert out[47].isnan().all()


@pytest.mark.skipif(DEVICE != "cpu", reason="the pool is memory that is never touched")
def test_k05_offsets_beyond_two_to_the_31() -> None:
    """The last blocks of a 2.5 GiB pool of int8, scales as well."""
    case = paged("int8", 256, (8, 8), (64, 64), [20], [3])
    store = KVStore(one_layer(8, 64), "int8", 256, (5 << 29) // (256 * 8 * 2 * 64))
    case.batch.block_tables[0, 0, 0] = store.num_blocks
    case.store = store
    store.write(0, case.keys[0], case.values[0], slots_of(case.batch.block_tables[0, 0], 0, 20, 256))
    check(case)


def test_what_cannot_run_is_refused() -> None:
    shape = KernelShape("bf16", "bf16", False, 16, 8, 2, 64, 64, "hnd", 4, 100)
    assert allowed(shape, DEFAULT) is None
    assert "share" in str(allowed(replace(shape, query_heads=9), DEFAULT))
    assert "576" in str(allowed(replace(shape, k_dim=576), DEFAULT))
    assert "16" in str(allowed(shape, Config(8, 32, 4, 2)))
    case = paged("fp32", 16, (3, 1), (16, 16), [4])
    case.q = case.q[:, :2]
    with pytest.raises(ValueError, match="wider"):
        run(paged("fp32", 16, (1, 1), (300, 300), [4]), torch.float32)


def test_a_launch_is_described_for_the_compiler() -> None:
    shape = KernelShape("bf16", "fp8_e4m3", True, 16, 8, 2, 128, 128, "hnd", 4, 100, has_window=True)
    spec = compile_spec(shape, DEFAULT)
    assert spec.signature["data"] == "*fp8e4nv"
    assert {"q", "data", "scales", "out", "v_base"} <= set(spec.divisible_by_16)
    assert not {"pieces", "width", "window"} & (set(spec.constexprs) | set(spec.divisible_by_16))
    assert (spec.constexprs["HAS_WINDOW"], spec.constexprs["sinks"]) == (True, None)
