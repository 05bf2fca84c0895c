"""The Triton kernels' float64 reference against torch's SDPA, against plain loops and against the store."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch

from kvbench.engine.attention.rule import ScoreRule
from kvbench.engine.kvstore.layout import StoredForm, block_layout
from kvbench.engine.kvstore.scales import TensorScales
from kvbench.geometry.model import LayerGroup
from kvbench_kernels.offsets import Offsets, block_offsets
from kvbench_kernels.reference import Rule, attend, decode, prefill
from kvbench_kernels.specs import KernelShape
from tests.attention.batches import paged
from tests.attention.batches import reference as token_by_token
from tests.kernels.pools import FlatPool, flat_pool, rule_of

DTYPES = ("fp32", "fp16", "bf16", "fp8_e4m3", "fp8_e5m2", "int8")


def test_attention_is_that_of_torch() -> None:
    torch.manual_seed(0)
    q, k, v = torch.randn(7, 6, 16).double(), torch.randn(2, 30, 16).double(), torch.randn(2, 30, 24).double()
    mask = torch.ones(7, 30).tril(23).bool()
    expected = torch.nn.functional.scaled_dot_product_attention(
        q.transpose(0, 1), k.repeat_interleave(3, 0), v.repeat_interleave(3, 0), mask, scale=0.3
    )
    torch.testing.assert_close(attend(q, k, v, Rule(0.3)), expected.transpose(0, 1))


def test_window_sinks_cap_and_v_scale_are_what_plain_loops_say() -> None:
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 4, 8).double(), torch.randn(2, 9, 8).double(), torch.randn(2, 9, 5).double()
    sinks = torch.tensor([-1.0, 0.5, 3.0, 0.0])
    out = attend(q, k, v, Rule(0.7, 4, 1.5, sinks, 2.5), first=11)
    for i, h in itertools.product(range(3), range(4)):
        seen = range(6 + i - 3, 6 + i + 1)
        scores = [1.5 * math.tanh(0.7 * float(q[i, h] @ k[h // 2, t]) / 1.5) for t in seen]
        total = sum(map(math.exp, scores)) + math.exp(float(sinks[h]))
        expected = sum(2.5 * math.exp(x) / total * v[h // 2, t] for x, t in zip(scores, seen, strict=True))
        torch.testing.assert_close(out[i, h], expected)


@pytest.mark.parametrize("layout", ["hnd", "nhd"])
@pytest.mark.parametrize("kv_dtype", DTYPES)
def test_stored_rows_are_what_was_written(kv_dtype: str, layout: str) -> None:
    rule = ScoreRule(0.3, 5.0, torch.linspace(-2, 2, 6))
    case = paged(kv_dtype, 3, (6, 2), (20, 12), [1, 40, 17], [1, 4, 17], window=9, rule=rule, kv_layout=layout)
    pool = flat_pool(case)
    starts = torch.from_numpy(case.batch.query_starts)
    out = prefill(case.q, starts, *_args(pool), rule_of(case))
    torch.testing.assert_close(out, token_by_token(case, kv_dtype), atol=1e-6, rtol=0)


def test_static_scales_are_folded_and_length_zero_gives_zeros() -> None:
    case = paged("int8", 4, (4, 4), (8, 8), [0, 30], tensor_scales=TensorScales((0.03,), (0.05,)))
    out = decode(case.q, *_args(flat_pool(case)), rule_of(case))
    assert (out[0] == 0).all()
    torch.testing.assert_close(out[1], token_by_token(case, "int8")[1], atol=1e-6, rtol=0)


def test_a_latent_row_is_its_own_v() -> None:
    case = paged("fp8_e4m3", 5, (3, 1), (24, 16), [13], is_latent=True)
    pool = flat_pool(case)
    assert pool.dims == (1, 24, 16)
    out = decode(case.q, *_args(pool), rule_of(case))
    torch.testing.assert_close(out, token_by_token(case, "fp8_e4m3"), atol=1e-6, rtol=0)


@pytest.mark.parametrize("layout", ["hnd", "nhd"])
@pytest.mark.parametrize("scales", ["token-head", "tensor-absmax"])
@pytest.mark.parametrize("kv_dtype", DTYPES)
def test_offsets_are_those_of_the_store(kv_dtype: str, scales: str, layout: str) -> None:
    for block_size, kv_heads, k_dim, v_dim in ((1, 1, 5, 7), (3, 2, 40, 33), (16, 8, 128, 128), (17, 3, 3, 3)):
        stored = block_layout(
            LayerGroup("full", (0,), kv_heads, k_dim, v_dim, None), StoredForm(kv_dtype, block_size, scales, layout)
        )
        shape = KernelShape(
            "bf16", kv_dtype, stored.has_scales, block_size, kv_heads, kv_heads, k_dim, v_dim, layout, 1, 1
        )
        assert _used(block_offsets(shape), stored.has_scales) == _used(stored.offsets, stored.has_scales)
        latent = block_layout(
            LayerGroup("latent", (0,), 1, k_dim, 0, None), StoredForm(kv_dtype, block_size, scales, layout), None, 4
        )
        shape = KernelShape("bf16", kv_dtype, latent.has_scales, block_size, 8, 1, k_dim, 4, layout, 1, 1)
        latent_offsets = block_offsets(shape, is_latent=True)
        assert _used(latent_offsets, latent.has_scales) == _used(latent.offsets, latent.has_scales)


def _args(pool: FlatPool) -> tuple[Any, ...]:
    return pool.data, pool.scales, pool.tables, pool.lengths, pool.dims, pool.offsets


def _used(offsets: Offsets, has_scales: bool) -> Offsets:
    return offsets if has_scales else offsets._replace(block_scales=0, k_scale_base=0, v_scale_base=0)
