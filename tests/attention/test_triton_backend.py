"""The Triton backend (interpreted) over the store's blocks: decodes and prefill pieces of one batch against float64,
NaN wherever nothing may be read. What the kernels can do by themselves is tested beside them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from kvbench.engine.attention.registry import attention_backend
from kvbench.engine.attention.rule import ScoreRule
from kvbench.engine.kvstore.codec import LARGEST
from kvbench.engine.kvstore.layout import ELEMENTS
from kvbench.engine.kvstore.scales import TensorScales
from kvbench.errors import CannotRunError, InternalError
from tests.attention.batches import paged, reference
from tests.attention.test_backends import attend

pytest.importorskip("triton")
from kvbench.engine.attention.triton_backend import TritonAttention, to_device
from kvbench_kernels import decode_triton

CONTEXTS, QUERIES = [0, 1, 17, 70, 33, 50], [1, 1, 1, 1, 20, 3]
"""Four decodes, an empty one among them, and two prefill pieces in the middle of their prompts."""
SINKS = ScoreRule(sinks=torch.tensor([0.5, -1.0, 2.0, 0.0]))
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "blocks of 3, tokens first": {"block_size": 3, "kv_layout": "nhd"},
    "blocks of 64": {"block_size": 64},
    "window": {"window": 20, "block_size": 4},
    "sinks and window": {"rule": SINKS, "window": 9},
    "soft cap and scale": {"rule": ScoreRule(scale=0.3, soft_cap=2.0)},
    "unequal rows": {"dims": (24, 40)},
    "latent": {"heads": (4, 1), "dims": (40, 32), "is_latent": True},
    "latent with window and sinks": {
        "heads": (4, 1), "dims": (40, 32), "is_latent": True, "rule": ScoreRule(scale=0.4, sinks=SINKS.sinks)
    },
}  # fmt: skip
DTYPES = {"plain": ELEMENTS, "latent": ("fp32", "bf16", "int8", "fp8_e5m2")}


@pytest.mark.parametrize(
    ("name", "kv_dtype"), [(name, kv_dtype) for name in CASES for kv_dtype in DTYPES.get(name, ("fp32", "int8"))]
)
def test_a_batch_of_decodes_and_pieces_equals_float64_over_the_stored_form(name: str, kv_dtype: str) -> None:
    """Unwritten slots, the null block, blocks of nobody, and what lies before a window are NaN."""
    chosen = {"block_size": 16, "heads": (4, 2), "dims": (32, 32), **CASES[name]}
    block_size, heads, dims = (chosen.pop(key) for key in ("block_size", "heads", "dims"))
    case = paged(kv_dtype, block_size, heads, dims, CONTEXTS, QUERIES, **chosen)
    out = attend("triton", case)
    torch.testing.assert_close(out.double(), reference(case, kv_dtype), atol=1e-5, rtol=0)
    assert (out[0] == 0).all()


@pytest.mark.parametrize("is_latent", [False, True])
@pytest.mark.parametrize("kv_dtype", ["int8", "fp8_e4m3", "fp8_e5m2"])
def test_static_scales_multiply_scores_and_results(kv_dtype: str, is_latent: bool) -> None:
    most = LARGEST[ELEMENTS[kv_dtype]]
    k_scale, v_scale = torch.tensor([4.5 / most, 5 / most]).tolist()
    scales = TensorScales((k_scale,), (k_scale if is_latent else v_scale,))
    heads, dims = ((4, 1), (40, 32)) if is_latent else ((4, 2), (24, 40))
    case = paged(kv_dtype, 5, heads, dims, CONTEXTS, QUERIES, is_latent=is_latent, tensor_scales=scales)
    torch.testing.assert_close(attend("triton", case).double(), reference(case, kv_dtype), atol=1e-5, rtol=0)


@pytest.mark.parametrize("queries", [[1, 1, 1], [20, 30, 7]])
def test_a_batch_may_have_decodes_or_pieces_only(queries: list[int]) -> None:
    case = paged("fp32", 4, (4, 2), (16, 16), [20, 30, 9], queries)
    torch.testing.assert_close(attend("triton", case).double(), reference(case), atol=1e-5, rtol=0)


@pytest.mark.parametrize("is_latent", [False, True])
def test_k02_many_splits_of_which_some_are_empty(monkeypatch: pytest.MonkeyPatch, is_latent: bool) -> None:
    """As a captured step has them: the grid is that of the longest context that there can be."""
    heads, dims = ((4, 1), (40, 32)) if is_latent else ((4, 2), (16, 16))
    case = paged("fp32", 16, heads, dims, [300, 0, 5, 129], is_latent=is_latent)
    backend = TritonAttention()
    monkeypatch.setattr(decode_triton, "splits_for", lambda *_: 5)
    backend.prepare(case.batch, case.store)
    out = backend.attend(0, case.q, case.store).double()
    torch.testing.assert_close(out, reference(case), atol=1e-5, rtol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_queries_of_two_bytes_give_results_of_two_bytes(dtype: torch.dtype) -> None:
    case = paged("bf16" if dtype == torch.bfloat16 else "fp16", 16, (4, 2), (32, 32), CONTEXTS, QUERIES)
    case.q = case.q.to(dtype)
    out = attend("triton", case)
    assert out.dtype == dtype
    torch.testing.assert_close(out.double(), reference(case, case.store.kv_dtype), atol=3e-2, rtol=0)


def test_queries_are_read_where_they_lie_in_the_projection() -> None:
    case = paged("fp32", 16, (4, 2), (32, 32), CONTEXTS, QUERIES)
    expected = attend("triton", case)
    wide = torch.full((len(case.q), 8, 32), torch.nan)
    wide[:, :4] = case.q
    case.q = wide[:, :4]
    assert torch.equal(attend("triton", case), expected)


def test_a_batch_that_names_a_block_that_is_not_there_is_refused() -> None:
    case = paged("fp32", 4, (2, 2), (8, 8), [10, 20])
    case.batch.block_tables[0, 1, 2] = 1000
    with pytest.raises(InternalError, match="names block 1000"):
        TritonAttention().prepare(case.batch, case.store)


def test_host_arrays_cross_in_one_copy_and_begin_on_multiples_of_16_bytes() -> None:
    parts = [np.arange(size, dtype=np.int32) + 100 * size for size in (1, 0, 7, 4)]
    parts.append(np.arange(6, dtype=np.int32).reshape(2, 3))
    there = to_device(parts, torch.device("cpu"))
    for part, tensor in zip(parts, there, strict=True):
        assert np.array_equal(tensor.numpy(), part)
        assert tensor.data_ptr() % 16 == there[0].data_ptr() % 16
        assert tensor.untyped_storage().data_ptr() == there[0].untyped_storage().data_ptr()


def test_on_a_cpu_without_the_interpreter_the_reason_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(CannotRunError, match="interpreter only, which TRITON_INTERPRET=1 switches on"):
        attention_backend("triton", "cpu")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert attention_backend("triton", "cpu").name == "triton-interpreted"


def test_without_the_package_the_reason_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvbench.engine.automatic.find_spec", lambda _: None)
    with pytest.raises(CannotRunError, match="not installed"):
        attention_backend("triton", "cuda")
    assert attention_backend("auto", "cuda").name == "torch"
