"""Order within a block: it changes where a row lies and nothing that is read."""

from __future__ import annotations

import pytest
import torch

from kvbench.engine.kvstore.layout import ELEMENTS
from kvbench.engine.kvstore.store import KVStore
from kvbench.errors import UsageError
from tests.attention.batches import one_layer, paged
from tests.attention.test_backends import attend

DTYPES = tuple(ELEMENTS)


@pytest.mark.parametrize("kv_dtype", DTYPES)
@pytest.mark.parametrize("name", ["torch", "numba"])
def test_both_layouts_give_the_same_bits(name: str, kv_dtype: str) -> None:
    """Decodes and a prefill, K and V of unequal size."""
    cases = [
        paged(kv_dtype, 5, (6, 3), (24, 40), [0, 1, 70, 300, 33], [1, 1, 1, 1, 20], kv_layout=layout)
        for layout in ("hnd", "nhd")
    ]
    assert torch.equal(attend(name, cases[0]), attend(name, cases[1]))
    for s, length in enumerate(cases[0].batch.context_lengths.tolist()):
        tables = [torch.from_numpy(case.batch.block_tables[0, s]) for case in cases]
        gathered = [case.store.gather(0, table, length) for case, table in zip(cases, tables, strict=True)]
        for ours, theirs in zip(*gathered, strict=True):
            assert torch.equal(ours, theirs)


@pytest.mark.parametrize("layout", ["hnd", "nhd"])
def test_rows_lie_in_memory_in_the_order_of_the_name(layout: str) -> None:
    """One block of 4 tokens, 2 heads and 3 elements: K, then V, in float32."""
    store = KVStore(one_layer(2, 3), "fp32", 4, 1, kv_layout=layout)
    k, v = torch.randn(4, 2, 3), torch.randn(4, 2, 3)
    store.write(0, k, v, torch.arange(4) + 4)
    memory = store.pool.bytes[0, 1].view(torch.float32)[:48].unflatten(0, (2, -1))
    expected = [x if layout == "nhd" else x.transpose(0, 1) for x in (k, v)]
    for part, given in zip(memory, expected, strict=True):
        assert torch.equal(part, given.flatten())


@pytest.mark.parametrize("layout", ["hnd", "nhd"])
def test_scales_lie_in_the_order_of_their_rows(layout: str) -> None:
    store = KVStore(one_layer(2, 8), "int8", 4, 1, kv_layout=layout)
    k = torch.arange(1.0, 9.0).reshape(4, 2, 1).expand(4, 2, 8).contiguous()
    store.write(0, k, k, torch.arange(4) + 4)
    scales = store.pool.bytes[0, 1].view(torch.float32)[-16:].unflatten(0, (2, -1))
    expected = (k if layout == "nhd" else k.transpose(0, 1))[..., 0].flatten() / 127
    for part in scales:
        torch.testing.assert_close(part, expected, atol=0, rtol=0)


def test_an_unknown_layout_is_refused() -> None:
    with pytest.raises(UsageError, match="unknown KV layout 'ndh'"):
        KVStore(one_layer(1, 8), "fp32", 4, 1, kv_layout="ndh")
