"""The Triton kernels' shared parts, in the interpreter or on the device that is there."""

from __future__ import annotations

import math

import pytest
import torch

pytest.importorskip("triton")
import triton
import triton.language as tl

from kvbench.engine.kvstore.layout import ELEMENTS
from kvbench_kernels.triton_runtime import compile_of, decoded, dot, narrowed, next_power_of_two, scores_base2

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
COMPUTE = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}


@triton.jit
def _product(a, stored, out, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    m, n, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    left = tl.load(a + m[:, None] * K + k[None, :])
    right = decoded(tl.load(stored + k[:, None] * N + n[None, :]), left.dtype)
    acc = dot(left, right, tl.full((M, N), 1.0, tl.float32))
    tl.store(out + m[:, None] * N + n[None, :], acc)


@pytest.mark.parametrize("kv_dtype", ELEMENTS)
@pytest.mark.parametrize("query_dtype", COMPUTE)
def test_a_stored_tile_times_a_tile_of_queries(query_dtype: str, kv_dtype: str) -> None:
    torch.manual_seed(0)
    a = torch.randn(16, 32, device=DEVICE).to(COMPUTE[query_dtype])
    stored = (torch.randn(32, 16, device=DEVICE) * 20).to(ELEMENTS[kv_dtype])
    out = torch.full((16, 16), torch.nan, device=DEVICE)
    _product[(1,)](a, stored, out, 16, 16, 32)
    right = stored.float().to(COMPUTE[query_dtype])
    torch.testing.assert_close(out.double(), a.double() @ right.double() + 1, rtol=0, atol=1e-3)


@triton.jit
def _scores(raw, out, scale, cap, HAS_CAP: tl.constexpr, N: tl.constexpr):
    n = tl.arange(0, N)
    tl.store(out + n, scores_base2(tl.load(raw + n), scale, cap, HAS_CAP))


@pytest.mark.parametrize("cap", [0.0, 2.5])
def test_scores_in_base_two(cap: float) -> None:
    raw = torch.tensor([0.0, 1e-3, -1.0, 7.0, -40.0, 3e4, -3e38, 3e38], device=DEVICE)
    out = torch.empty_like(raw)
    _scores[(1,)](raw, out, 0.3, cap, cap > 0, 8)
    score = 0.3 * raw.double()
    expected = (cap * torch.tanh(score / cap) if cap else score) * math.log2(math.e)
    torch.testing.assert_close(out.double(), expected, rtol=1e-6, atol=1e-6)


@triton.jit
def _narrow(x, out, N: tl.constexpr):
    n = tl.arange(0, N)
    tl.store(out + n, narrowed(tl.load(x + n), out.dtype.element_ty))


@pytest.mark.parametrize("dtype", COMPUTE.values())
def test_results_are_rounded_to_nearest_even(dtype: torch.dtype) -> None:
    ties = [1 + 2.0**-8, 1 + 3 * 2.0**-8, 1 + 2.0**-11, 1 + 3 * 2.0**-11, -1.9999, 3.0e38, 65519.0, 0.0]
    x = torch.cat([torch.tensor(ties), torch.randn(6) * 100, torch.tensor([torch.nan, -torch.inf])]).to(DEVICE)
    out = torch.zeros(16, dtype=dtype, device=DEVICE)
    _narrow[(1,)](x, out, 16)
    torch.testing.assert_close(out, x.to(dtype), rtol=0, atol=0, equal_nan=True)


def test_next_power_of_two() -> None:
    assert [next_power_of_two(n) for n in (1, 2, 3, 16, 17, 80, 256)] == [1, 2, 4, 16, 32, 128, 256]


def test_a_compile_is_described_as_the_launcher_would_specialise_it() -> None:
    constants = {"HAS_CAP": True, "N": 8}
    spec = compile_of(_scores, {"raw": "fp32", "out": "bf16"}, {}, ("scale", "cap"), constants, 4, 2)
    assert spec.signature == {
        "raw": "*fp32", "out": "*bf16", "scale": "fp32", "cap": "fp32", "HAS_CAP": "constexpr", "N": "constexpr"
    }  # fmt: skip
    assert (spec.module, spec.function) == (__name__, "_scores")
    assert spec.divisible_by_16 == ("raw", "out")
    with pytest.raises(ValueError, match="cap"):
        compile_of(_scores, {"raw": "fp32", "out": "bf16"}, {}, ("scale",), constants, 4, 2)


def test_integers_become_constants_at_one_and_promises_at_sixteen() -> None:
    integers = {"M": 1, "N": 32, "K": 1}
    spec = compile_of(_product, {"a": "fp32", "stored": None, "out": "fp32"}, integers, (), {}, 4, 2, varying=("K",))
    assert spec.constexprs == {"stored": None, "M": 1}
    assert spec.signature["N"] == spec.signature["K"] == "i32"
    assert spec.divisible_by_16 == ("a", "out", "N")
