"""Faults that paged-attention kernels have had, on the Triton decode (K05 and K07: `test_decode_triton_memory.py`)."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

from kvbench.engine.kvstore.scales import TensorScales
from kvbench_kernels.decode_triton import DEFAULT, SPACE, Config, allowed, splits_for
from kvbench_kernels.specs import KernelShape
from tests.attention.batches import Paged, paged
from tests.kernels.decode_runs import BOUNDS, assert_right, expected, run
from tests.kernels.test_decode_triton_bugs import rising

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:triton")
H200, A100 = 132, 108


@pytest.mark.parametrize("splits", [1, 3])
def test_k01_rows_of_length_zero_are_zero(splits: int) -> None:
    """A CUDA graph's padded rows have length 0, and their table rows name the null block, which holds NaN."""
    case = paged("int8", 4, (4, 2), (16, 16), [0, 7, 0, 20])
    out = run(case, splits=splits)
    assert (out[[0, 2]] == 0).all()
    assert_close(out, expected(case), BOUNDS[torch.float32])


def test_k02_empty_trailing_splits_are_merged_as_nothing() -> None:
    """Window 5 of 90 tokens in 8 splits; the scratch holds NaN beforehand."""
    assert_right(paged("fp16", 16, (4, 2), (32, 32), [90, 16], window=5), splits=8)


@pytest.mark.parametrize("kv_dtype", ["fp32", "fp16", "bf16", "int8"])
def test_k04_nan_behind_the_last_token_stays_out(kv_dtype: str) -> None:
    """NaN in the unwritten tail of the last block, before the window, in free blocks and in the null block."""
    assert_right(paged(kv_dtype, 48, (2, 1), (24, 24), [1, 49, 95], window=60))


@pytest.mark.parametrize("block_size", [3, 17, 48, 544])
def test_k08_block_sizes_that_are_no_power_of_two(block_size: int) -> None:
    assert_right(paged("fp8_e5m2", block_size, (2, 2), (16, 16), [64]), config=Config(tile=32), splits=2)


@pytest.mark.parametrize("dim", [40, 72, 80, 96, 112])
def test_k10_padded_heads_neither_read_nor_write_their_neighbours(dim: int) -> None:
    """NaN lies behind the last token's K and V, behind the last query head, and the output's next row stays NaN."""
    assert_right(paged("fp16", 4, (2, 2), (dim, dim), [18]))


@pytest.mark.parametrize("kv_dtype", ["fp8_e4m3", "fp8_e5m2", "int8"])
def test_k14_scales_of_k_and_v_both_count_for_half_precision_queries(kv_dtype: str) -> None:
    scales = TensorScales((0.06,), (3.0,))
    case = paged(kv_dtype, 4, (2, 2), (16, 16), [20], tensor_scales=scales)
    half = run(case, torch.bfloat16)
    assert_close(half, expected(case, torch.bfloat16), 3.0 * BOUNDS[torch.float16] * _largest(case))
    for other in (TensorScales((0.12,), (3.0,)), TensorScales((0.06,), (1.5,))):
        case.store.tensor_scales = other
        assert (run(case, torch.bfloat16) - half).abs().max() > 0.1
        assert_close(
            run(case, torch.bfloat16), expected(case, torch.bfloat16), 3.0 * BOUNDS[torch.float16] * _largest(case)
        )


def _largest(case: Paged) -> float:
    return max(1.0, max(float(v.abs().max()) for v in case.values) / 4)


def assert_close(out: torch.Tensor, wanted: torch.Tensor, bound: float) -> None:
    torch.testing.assert_close(out, wanted, atol=bound, rtol=0)


@pytest.mark.parametrize("q_dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_k16_e5m2_is_cast_before_the_product(q_dtype: torch.dtype) -> None:
    assert_right(paged("fp8_e5m2", 16, (4, 2), (64, 64), [33]), q_dtype)


@pytest.mark.parametrize("q_dtype", [torch.float32, torch.bfloat16])
def test_k18_any_number_of_splits_gives_one_result(q_dtype: torch.dtype) -> None:
    """Within the dtype's bound; the largest difference is far below it for float32."""
    case = paged("bf16", 16, (4, 2), (32, 32), [100])
    once = run(case, q_dtype)
    for splits in (2, 7):
        assert_close(run(case, q_dtype, splits), once, BOUNDS[q_dtype] / 2)


def test_k19_the_spread_between_tiles_is_bounded() -> None:
    case = paged("fp8_e4m3", 16, (4, 2), (64, 64), [90])
    outs = [run(case, torch.bfloat16, config=Config(tile=tile)) for tile in (16, 32, 128)]
    spread = torch.stack(outs).std(0).max()
    assert spread < BOUNDS[torch.float16] / 2
    for out in outs:
        assert_close(out, expected(case, torch.bfloat16), BOUNDS[torch.float16])


def test_k20_one_long_sequence_fills_the_device() -> None:
    """Also with few KV heads, where a rule of eight splits leaves most of it idle."""
    for processors in (H200, A100, 148):
        for kv_heads in (1, 2, 8):
            for context in (32_768, 131_072):
                splits = splits_for(1, 32, kv_heads, context, processors)
                head_blocks = -(-(32 // kv_heads) // DEFAULT.head_rows)
                assert kv_heads * head_blocks * splits >= processors, (processors, kv_heads, context)


def test_k21_a_short_context_is_not_cut_to_pieces() -> None:
    for batch in (1, 2, 8, 64, 1024):
        assert splits_for(batch, 32, 8, 256, H200) in (1, 2)
        assert splits_for(batch, 32, 8, 100, H200) == 1
    assert splits_for(0, 32, 8, 0, H200) == 1


def test_splits_shrink_with_the_batch_and_leave_waves_full() -> None:
    counts = [splits_for(batch, 32, 8, 8192, H200) for batch in (1, 2, 4, 8, 16, 32, 64, 128, 512)]
    assert counts[0] > counts[2] > counts[4]
    assert counts[-1] == 1
    for batch in range(1, 200):
        splits = splits_for(batch, 32, 8, 65_536, H200)
        waves = batch * 8 * splits / (2 * H200)
        assert waves / -(-waves // 1) >= 0.75, batch


@pytest.mark.parametrize("splits", [1, 2, 3])
def test_k28_the_running_maximum_rises_in_every_tile(splits: int) -> None:
    """Two tiles a split at least: with one, an accumulator that is never rescaled is right."""
    assert_right(rising("fp32", 16 * 2 * splits + 5), splits=splits)


def shape(**changes: object) -> KernelShape:
    fields = {"query_dtype": "bf16", "kv_dtype": "int8", "has_block_scales": True, "block_size": 16, "query_heads": 32}
    fields |= {"kv_heads": 8, "k_dim": 128, "v_dim": 128, "layout": "hnd", "batch": 1, "context": 512}
    return KernelShape(**(fields | changes))  # type: ignore[arg-type]


def test_what_cannot_run_is_refused_with_the_reason() -> None:
    assert allowed(shape(), DEFAULT) is None
    for wrong, why in (
        (shape(query_tokens=4), "one query"),
        (shape(kv_heads=5), "share"),
        (shape(kv_heads=0), "share"),
        (shape(query_dtype="int8"), "queries of int8"),
        (shape(kv_dtype="int4"), "KV of int4"),
    ):
        assert why in str(allowed(wrong, DEFAULT))
    for config, why in (
        (Config(tile=48), "tile 48"),
        (Config(tile=8), "tile 8"),
        (Config(head_rows=20), "head_rows 20"),
        (Config(head_rows=32), "32 rows of heads for 4"),
        (Config(warps=3), "3 warps"),
        (Config(stages=0), "0 stages"),
    ):
        assert why in str(allowed(shape(), config))


def test_the_default_is_in_the_space_and_the_space_is_of_the_config() -> None:
    assert all(getattr(DEFAULT, name) in values for name, values in SPACE.items())
    assert set(SPACE) == set(Config.__dataclass_fields__)
