"""Each kernel against the plain reference on its own page."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kvbench.engine.attention.rule import ScoreRule
from kvbench_kernels import decode_numba, gather_numba, write_numba
from tests.attention.batches import paged
from tests.attention.test_backends import attend

CONTEXTS = [0, 1, 70, 300]


RULES = {
    "plain": (2**62, ScoreRule()),
    "window": (37, ScoreRule()),
    "sinks": (2**62, ScoreRule(0.3, sinks=torch.linspace(-3, 8, 6))),
    "everything": (64, ScoreRule(0.4, 2.5, torch.linspace(8, -3, 6))),
}


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("kv_dtype", ["fp32", "fp16", "bf16", "fp8_e4m3", "fp8_e5m2", "int8"])
def test_decode_and_gather_agree_with_their_pages(kv_dtype: str, name: str) -> None:
    window, rule = RULES[name]
    case = paged(kv_dtype, 5, (6, 2), (24, 40), CONTEXTS, window=None if window > 1000 else window, rule=rule)
    view = case.store.layers[0]
    y = view.layout
    tables, lengths = case.batch.block_tables[0], case.batch.context_lengths
    dims = (y.kv_heads, y.k_dim, y.v_dim)
    sinks = np.empty(0, np.float32) if rule.sinks is None else rule.sinks.numpy()
    numbers = (window, rule.scale_for(24), rule.soft_cap, *dims, *y.offsets)
    expected = decode_numba.reference(case.q.numpy(), view.flat, view.flat_scales, tables, lengths, sinks, *numbers)
    np.testing.assert_allclose(attend("numba", case).numpy(), expected, atol=5e-6)
    for table, length in zip(tables, CONTEXTS, strict=True):
        first = max(0, length - window)
        k, v = case.store.gather(0, torch.from_numpy(table), length, first)
        plain = gather_numba.reference(
            view.flat, view.flat_scales, table, first, length, *dims, *y.offsets.without_v_stride
        )
        for got, wanted in zip((k, v), plain, strict=True):
            np.testing.assert_allclose(got.numpy(), wanted, rtol=1e-6)


def test_int8_rows_agree_with_their_page() -> None:
    case = paged("int8", 5, (2, 2), (24, 40), [70])
    view, table = case.store.layers[0], case.batch.block_tables[0, 0]
    assert view.k_scale is not None
    for t in range(70):
        block, place = table[t // 5], t % 5
        for h in range(2):
            elements, scale = write_numba.reference(case.keys[0][t, h].numpy())
            np.testing.assert_array_equal(view.k[block, h, place].numpy(), elements)
            assert view.k_scale[block, h, place] == scale
