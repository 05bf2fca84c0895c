"""Paged decode in Triton against attention in float64 over what is stored; in the interpreter where no CUDA device is.
Unwritten slots, free and null blocks, slots before a window, the result and the splits' scratch hold NaN."""

from __future__ import annotations

import numpy as np
import pytest
import torch

pytest.importorskip("triton")

from kvbench.engine.attention.rule import ScoreRule
from kvbench.engine.kvstore.scales import TensorScales
from kvbench_kernels.decode_triton import Config
from tests.attention.batches import paged
from tests.kernels.decode_runs import BOUNDS, assert_right, expected, run

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:triton")
DTYPES = ("fp32", "fp16", "bf16", "fp8_e4m3", "fp8_e5m2", "int8")
CONTEXTS = [0, 7, 37]
SHAPES = {
    "block 3, MHA, 40 and 72": (3, (2, 2), (40, 72), 16),
    "block 17, MQA of five, 80": (17, (5, 1), (80, 80), 16),
    "block 48, GQA, 96": (48, (4, 2), (96, 96), 32),
    "block 64, a tile within a block, 64": (64, (6, 2), (64, 64), 16),
    "block 1, tile beyond all, 112": (1, (3, 1), (112, 112), 128),
    "block 256, 192 and 128": (256, (4, 1), (192, 128), 64),
    "block 16, 20 heads in two tiles, 128": (16, (20, 1), (128, 128), 64),
    "block 544, 256": (544, (2, 1), (256, 256), 32),
}


@pytest.mark.parametrize(
    ("kv_dtype", "shape"), [(d, s) for i, d in enumerate(DTYPES) for j, s in enumerate(SHAPES) if (i + j) % 2]
)
def test_every_stored_dtype_and_shape(kv_dtype: str, shape: str) -> None:
    block_size, heads, dims, tile = SHAPES[shape]
    layout = "nhd" if block_size % 3 == 0 else "hnd"
    case = paged(kv_dtype, block_size, heads, dims, CONTEXTS, kv_layout=layout)
    assert_right(case, config=Config(tile=tile), splits=1 + len(shape) % 2)


@pytest.mark.parametrize("kv_dtype", DTYPES)
@pytest.mark.parametrize("q_dtype", [torch.float16, torch.bfloat16])
def test_half_precision_queries(q_dtype: torch.dtype, kv_dtype: str) -> None:
    case = paged(kv_dtype, 5, (4, 2), (64, 64), [1, 90, 33])
    if q_dtype == torch.bfloat16 and kv_dtype == "fp16":  # K loses three bits
        out = run(case, q_dtype, 2)
        torch.testing.assert_close(out, expected(case, q_dtype), atol=2 * BOUNDS[q_dtype], rtol=0)
    else:
        assert_right(case, q_dtype, splits=2)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("splits", [1, 3])
def test_results_are_rounded_to_the_dtype_of_the_output(dtype: torch.dtype, splits: int) -> None:
    case = paged("fp32", 4, (4, 2), (32, 32), [50, 9])
    out = run(case, splits=splits, out_dtype=dtype)
    torch.testing.assert_close(out, expected(case).to(dtype).double(), atol=BOUNDS[torch.float32], rtol=2**-8)
    assert (out == out.to(dtype)).all()


RULES = {
    "window": (13, ScoreRule()),
    "window of one": (1, ScoreRule()),
    "sinks": (None, ScoreRule(0.3, sinks=torch.linspace(-3, 200, 6))),
    "sinks and window": (20, ScoreRule(0.3, sinks=torch.linspace(5, -300, 6))),
    "no sink for some": (None, ScoreRule(sinks=torch.tensor([-torch.inf, 0, -torch.inf, 2, 0, 1]))),
    "cap": (None, ScoreRule(soft_cap=1.5)),
    "everything": (37, ScoreRule(0.4, 2.5, torch.linspace(8, -3, 6))),
}


@pytest.mark.parametrize("splits", [1, 4])
@pytest.mark.parametrize("name", RULES)
def test_windows_sinks_and_caps(name: str, splits: int) -> None:
    window, rule = RULES[name]
    case = paged("int8", 5, (6, 2), (24, 40), [1, 130], window=window, rule=rule)
    assert_right(case, splits=splits)


@pytest.mark.parametrize("layout", ["hnd", "nhd"])
@pytest.mark.parametrize("kv_dtype", ["int8", "fp8_e4m3", "fp8_e5m2"])
def test_static_scales(kv_dtype: str, layout: str) -> None:
    scales = TensorScales((0.03,), (0.05,))
    case = paged(kv_dtype, 16, (4, 2), (64, 64), [40, 3], tensor_scales=scales, kv_layout=layout)
    assert_right(case, torch.bfloat16, splits=2)


def test_a_latent_layer_reads_v_from_the_front_of_k() -> None:
    assert_right(paged("int8", 7, (5, 1), (48, 40), [0, 50], is_latent=True))


def test_no_sequence_is_no_launch() -> None:
    case = paged("fp32", 4, (2, 2), (16, 16), [3])
    case.q = case.q[:0]
    assert run(case).shape == (0, 2, 16)


@pytest.mark.parametrize("q_dtype", [torch.float32, torch.bfloat16])
def test_queries_beyond_the_range_of_fp16(q_dtype: torch.dtype) -> None:
    case = paged("fp8_e4m3", 16, (2, 1), (32, 32), [40], rule=ScoreRule(1e-6))
    case.q *= 2.0**20
    case.q[0, 1] *= 2.0**-40
    assert_right(case, q_dtype)


@pytest.mark.parametrize("q_dtype", [torch.float16, torch.bfloat16])
def test_weights_times_tiny_scales_keep_their_bits(q_dtype: torch.dtype) -> None:
    """The scale of an e5m2 row is its largest element over 57,344: a weight of 1/100 times that is nothing in fp16."""
    case = paged("fp8_e5m2", 16, (2, 2), (32, 32), [33])
    case.q *= 3
    for size in (1e-3, 1.0, 3e4):
        scales = case.store.layers[0].v_scale
        assert scales is not None
        scales *= size
        torch.testing.assert_close(
            run(case, q_dtype) / size, expected(case, q_dtype) / size, atol=BOUNDS[torch.float16], rtol=0
        )
        scales /= size


@pytest.mark.parametrize("seed", range(12))
def test_drawn_shapes(seed: int) -> None:
    rng = np.random.default_rng(seed)
    kv_heads = int(rng.integers(1, 4))
    heads = (kv_heads * int(rng.integers(1, 9)), kv_heads)
    dims = (int(rng.integers(1, 20)) * 8, int(rng.integers(1, 20)) * 8)
    contexts = [int(n) for n in rng.integers(0, 120, 2)]
    sinks = torch.from_numpy(rng.normal(0, 3, heads[0])).float() if seed % 3 == 0 else None
    rule = ScoreRule(None, float(seed % 4 == 1) * 2.0, sinks)
    window = int(rng.integers(1, 100)) if seed % 2 else None
    kv_dtype, block_size = DTYPES[seed % 6], int(rng.integers(1, 70))
    layout = str(rng.choice(["hnd", "nhd"]))
    case = paged(kv_dtype, block_size, heads, dims, contexts, seed=seed, window=window, rule=rule, kv_layout=layout)
    config = Config(tile=int(rng.choice([16, 32, 64])), head_rows=int(rng.choice([16, 32])))
    assert_right(case, config=config, splits=int(rng.integers(1, 8)))


def test_a_result_does_not_depend_on_the_rest_of_the_batch() -> None:
    alone = run(paged("bf16", 4, (4, 2), (32, 32), [70], seed=3), splits=2)
    case = paged("bf16", 4, (4, 2), (32, 32), [70, 5, 130], seed=3)
    again = paged("bf16", 4, (4, 2), (32, 32), [70, 5, 130], seed=3)
    again.q[1:] = 7.0
    together, other = run(case, splits=2), run(again, splits=2)
    assert alone.shape[0] == 1
    assert (together[0] == other[0]).all()
