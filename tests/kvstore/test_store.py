"""Writing and gathering: numba against the torch reference bit by bit, and both against naive rules."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kvbench.engine.kvstore.codec import decode, encode
from kvbench.engine.kvstore.layout import ELEMENTS, StoredForm, block_layout
from kvbench.engine.kvstore.reading_writing import TorchIO
from kvbench.engine.kvstore.store import KVStore
from kvbench.errors import InternalError, UsageError
from kvbench.geometry.memory import block_bytes, layer_block_bytes
from tests.attention.batches import one_layer, poison

DTYPES = tuple(ELEMENTS)
SHAPES = [(2, 32, 32), (1, 80, 80), (3, 5, 5), (8, 64, 64), (1, 1, 1), (2, 24, 40)]


def hostile(tokens: int, heads: int, dim: int, seed: int = 0) -> torch.Tensor:
    """Rows of very different size, zeros, subnormal numbers and signs of zero."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn((tokens, heads, dim), generator=generator)
    x *= 10.0 ** torch.randint(-45, 38, (tokens, heads, 1), generator=generator)
    x[0] = 0.0
    x[-1] = -0.0
    return x


@pytest.mark.parametrize("block_size", [1, 3, 16, 256])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kv_dtype", DTYPES)
@pytest.mark.parametrize("tokens", [1, 700])
def test_numba_and_torch_store_the_same_bits(
    kv_dtype: str, shape: tuple[int, int, int], block_size: int, tokens: int
) -> None:
    heads, k_dim, v_dim = shape
    blocks = -(-tokens // block_size) + 3
    store, twin = (KVStore(one_layer(heads, k_dim, v_dim), kv_dtype, block_size, blocks) for _ in range(2))
    poison(store)
    poison(twin)
    k, v = hostile(tokens, heads, k_dim), hostile(tokens, heads, v_dim, seed=1)
    slots = torch.randperm(blocks * block_size)[:tokens] + block_size
    store.write(0, k, v, slots)
    TorchIO().write(twin.layers[0], k, v, slots)
    assert torch.equal(store.pool.bytes, twin.pool.bytes)
    table = torch.arange(blocks, 0, -1, dtype=torch.int32)
    length = tokens - 1
    for ours, theirs in zip(
        store.gather(0, table, length), TorchIO().gather(twin.layers[0], table, 0, length), strict=True
    ):
        torch.testing.assert_close(ours, theirs, atol=0, rtol=0, equal_nan=True)


@pytest.mark.parametrize("kv_dtype", DTYPES)
def test_gather_returns_what_was_written(kv_dtype: str) -> None:
    store = KVStore(one_layer(2, 16, 8, layers=3), kv_dtype, 4, 9)
    table = torch.tensor([5, 9, 1], dtype=torch.int32)
    slots = torch.tensor([20, 21, 22, 23, 36, 37, 38, 39, 4])
    k, v = torch.randn(9, 2, 16), torch.randn(9, 2, 8)
    store.write(1, k, v, slots)
    got_k, got_v = store.gather(1, table, 9)
    for got, given in ((got_k, k), (got_v, v)):
        torch.testing.assert_close(got, decode(*encode(given.transpose(0, 1), ELEMENTS[kv_dtype])), atol=0, rtol=0)
    assert not store.pool.bytes[[0, 2]].any(), "other layers are untouched"
    assert not store.pool.bytes[1, 0].any(), "the null block is untouched"


@pytest.mark.parametrize("kv_dtype", ["fp16", "bf16"])
def test_floats_round_to_nearest_even(kv_dtype: str) -> None:
    """Every bit pattern of the 16-bit form, and the midpoints between neighbours, against numpy or the definition."""
    store = KVStore(one_layer(1, 1), kv_dtype, 256, 600)
    every = torch.arange(-(2**15), 2**15, dtype=torch.int16).view(ELEMENTS[kv_dtype]).float()
    x = torch.cat([every, (every[:-1] + every[1:]) / 2])
    slots = torch.arange(len(x)) + 256
    store.write(0, x[:, None, None], x[:, None, None], slots)
    got = store.gather(0, torch.arange(1, 601, dtype=torch.int32), len(x))[0].flatten()
    torch.testing.assert_close(got, x.to(ELEMENTS[kv_dtype]).float(), atol=0, rtol=0, equal_nan=True)


def test_e80_int8_uses_plus_and_minus_127() -> None:
    """The largest element of a row is ±127, −128 never appears, and zero stays zero."""
    store = KVStore(one_layer(2, 64), "int8", 16, 20)
    k = hostile(300, 2, 64)
    store.write(0, k, -k, torch.arange(300) + 16)
    stored = store.layers[0].k[1:].to(torch.int32)
    assert stored.min() == -127
    assert stored.max() == 127
    has_normal_scale = (k.abs().amax(-1) > 1e-35) & (k.abs().amax(-1) < 1e37)
    largest = stored.transpose(1, 2).flatten(0, 1)[:300].abs().amax(-1)
    assert (largest[has_normal_scale] == 127).all()
    assert not store.gather(0, torch.tensor([1], dtype=torch.int32), 1)[0].any()


@pytest.mark.parametrize(("kv_dtype", "most"), [("int8", 127.0), ("fp8_e4m3", 448.0), ("fp8_e5m2", 57344.0)])
def test_e80_every_narrow_dtype_has_its_own_largest_number(kv_dtype: str, most: float) -> None:
    """The scale is the row's largest magnitude over the dtype's own number, which that element becomes."""
    store = KVStore(one_layer(2, 64), kv_dtype, 16, 20)
    k = torch.randn(300, 2, 64)
    store.write(0, k, k, torch.arange(300) + 16)
    view = store.layers[0]
    assert view.k_scale is not None
    scales = view.k_scale[1:].transpose(1, 2).flatten(0, 1)[:300]
    torch.testing.assert_close(scales, k.abs().amax(-1) / most, atol=0, rtol=0)
    largest = view.k[1:].float().transpose(1, 2).flatten(0, 1)[:300].abs().amax(-1)
    assert (largest == most).all()


def test_e78_the_bound_holds_only_with_the_scale() -> None:
    """Values of some 10⁴: half a step of each row's own scale; with scale 1 they would saturate at 127."""
    store = KVStore(one_layer(2, 64), "int8", 16, 4)
    x = torch.randn(32, 2, 64) * 1e4
    store.write(0, x, x, torch.arange(32) + 16)
    got = store.gather(0, torch.tensor([1, 2], dtype=torch.int32), 32)[0].transpose(0, 1)
    step = x.abs().amax(-1, keepdim=True) / 127
    assert ((got - x).abs() <= step * 0.5001).all()
    assert ((x.clamp(-127, 127) - x).abs() > step).any()


@pytest.mark.parametrize("kv_dtype", ["int8", "fp8_e4m3", "fp8_e5m2"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_narrow_dtype_does_not_hide_a_row_that_is_not_finite(bad: float, kv_dtype: str) -> None:
    store = KVStore(one_layer(1, 8), kv_dtype, 4, 2)
    k = torch.ones(2, 1, 8)
    k[0, 0, 3] = bad
    store.write(0, k, k, torch.tensor([4, 5]))
    got = store.gather(0, torch.tensor([1], dtype=torch.int32), 2)[0]
    assert got[0, 0].isnan().all()
    torch.testing.assert_close(got[0, 1], k[1, 0])


@pytest.mark.parametrize("kv_dtype", DTYPES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_activations_are_stored_from_their_own_values(kv_dtype: str, dtype: torch.dtype) -> None:
    store = KVStore(one_layer(2, 8), kv_dtype, 4, 2)
    k = torch.randn(4, 2, 8).to(dtype)
    store.write(0, k, k, torch.arange(4) + 4)
    got = store.gather(0, torch.tensor([1], dtype=torch.int32), 4)[1].transpose(0, 1)
    torch.testing.assert_close(got, decode(*encode(k.float(), ELEMENTS[kv_dtype])), atol=0, rtol=0)


def test_strided_rows_and_no_rows_are_accepted() -> None:
    store = KVStore(one_layer(2, 8), "fp32", 4, 2)
    qkv = torch.randn(4, 6, 8)
    store.write(0, qkv[:, 2:4], qkv[:, 4:], torch.arange(8)[::2] + 4)
    got = store.gather(0, torch.tensor([1, 2], dtype=torch.int32), 8)[0][:, ::2].transpose(0, 1)
    torch.testing.assert_close(got, qkv[:, 2:4])
    store.write(0, qkv[:0, 2:4], qkv[:0, 4:], torch.zeros(0, dtype=torch.int64))
    k, v = store.gather(0, torch.zeros(0, dtype=torch.int32), 0)
    assert k.shape == v.shape == (2, 0, 8)


@pytest.mark.parametrize("slot", [-1, 0, 3, 12, 2**40])
def test_a_slot_outside_the_pool_is_refused_and_nothing_is_written(slot: int) -> None:
    """Slots 4 to 11 exist; 0 to 3 are the null block."""
    store = KVStore(one_layer(1, 8), "fp32", 4, 2)
    with pytest.raises(InternalError, match=f"slot {slot} of token 1"):
        store.write(0, torch.ones(2, 1, 8), torch.ones(2, 1, 8), torch.tensor([4, slot]))
    assert not store.pool.bytes.any()


def test_a_gather_beyond_the_table_is_refused() -> None:
    store = KVStore(one_layer(1, 8), "fp32", 4, 2)
    with pytest.raises(InternalError, match="cannot hold 9 tokens"):
        store.gather(0, torch.tensor([1, 2], dtype=torch.int32), 9)


@pytest.mark.parametrize("block_size", [1, 3, 4, 16, 17, 256])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kv_dtype", DTYPES)
def test_the_pool_is_as_large_as_geometry_says(kv_dtype: str, shape: tuple[int, int, int], block_size: int) -> None:
    geometry = one_layer(*shape, layers=2)
    store = KVStore(geometry, kv_dtype, block_size, 5)
    assert store.block_bytes == block_bytes(geometry, kv_dtype, block_size)
    assert store.pool.bytes.shape == (2, 6, layer_block_bytes(geometry.groups[0], kv_dtype, block_size))


@pytest.mark.parametrize("block_size", [1, 3, 4, 16, 17, 256])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kv_dtype", DTYPES)
def test_no_byte_of_a_block_has_two_uses(kv_dtype: str, shape: tuple[int, int, int], block_size: int) -> None:
    """Mark K, V and scales one after the other through the views: each keeps its mark."""
    store = KVStore(one_layer(*shape), kv_dtype, block_size, 2)
    view = store.layers[0]
    parts = [part for part in (view.k, view.v, view.k_scale, view.v_scale) if part is not None]
    for mark, part in enumerate(parts, start=1):
        part.fill_(mark)
    for mark, part in enumerate(parts, start=1):
        assert (part == mark).all()
    used = sum(part.numel() * part.element_size() for part in parts)
    assert used <= store.pool.bytes.numel() < used + 3 * (16 + 4)
    assert block_layout(store.geometry.groups[0], StoredForm(kv_dtype, block_size)) == view.layout


def test_a_dtype_that_cannot_be_stored_is_refused() -> None:
    with pytest.raises(UsageError, match="int4"):
        KVStore(one_layer(1, 8), "int4", 4, 2)


def test_flat_arrays_are_views_of_the_pool() -> None:
    view = (store := KVStore(one_layer(1, 8), "fp32", 4, 2)).layers[0]
    assert view.flat is not None
    view.flat[:] = np.float32(7)
    assert (store.pool.bytes.view(torch.float32) == 7).all()
