"""Writing by the Triton kernel (interpreted): the bits of the store's torch codec and of numba, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from kvbench.engine.kvstore.layout import ELEMENTS
from kvbench.engine.kvstore.reading_writing import NumbaIO, TorchIO
from kvbench.engine.kvstore.scales import TensorScales
from kvbench.engine.kvstore.store import KVStore
from tests.attention.batches import one_latent_layer, one_layer, poison
from tests.kvstore.test_store import hostile

pytest.importorskip("triton")
from kvbench_kernels import write_triton
from kvbench_kernels.write_triton import Config

pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered")
DTYPES = tuple(ELEMENTS)
NARROW = ("int8", "fp8_e4m3", "fp8_e5m2")


def write(store: KVStore, k: torch.Tensor, v: torch.Tensor, slots: torch.Tensor, config: Config | None = None) -> None:
    view = store.layers[0]
    layout = view.layout
    plane = store.pool.bytes[0].flatten()
    write_triton.write(
        k,
        v,
        plane.view(layout.element),
        plane.view(torch.float32) if layout.has_scales else None,
        slots,
        *layout.offsets.without_v_stride,
        None if view.k_tensor_scale is None else (view.k_tensor_scale, view.v_tensor_scale or 1.0),
        config or Config(rows=32),
    )


def stores(count: int, *args: Any, **more: Any) -> list[KVStore]:
    found = [KVStore(*args, **more) for _ in range(count)]
    for store in found:
        poison(store)
    return found


def make_nan_plain(store: KVStore) -> None:
    """torch's own cast of a NaN to bf16 gives 0x7FC0 or 0xFFFF, as it happens to vectorise."""
    for part in (store.layers[0].k, store.layers[0].v):
        if part.dtype == torch.bfloat16:
            part[part.isnan()] = torch.tensor(0x7FC0, dtype=torch.int16).view(torch.bfloat16)


@pytest.mark.parametrize("kv_layout", ["hnd", "nhd"])
@pytest.mark.parametrize(
    ("shape", "block_size"), [((2, 32, 32), 16), ((1, 80, 80), 1), ((3, 5, 7), 17), ((2, 24, 40), 256)]
)
@pytest.mark.parametrize("kv_dtype", DTYPES)
def test_triton_numba_and_torch_store_the_same_bits(
    kv_dtype: str, shape: tuple[int, int, int], block_size: int, kv_layout: str
) -> None:
    """Rows from 10⁻⁴⁵ to 10³⁸, zeros of both signs, NaN and infinity; bytes that are not written keep their poison."""
    heads, k_dim, v_dim = shape
    blocks = -(-90 // block_size) + 3
    ours, by_torch, by_numba = stores(
        3, one_layer(heads, k_dim, v_dim), kv_dtype, block_size, blocks, kv_layout=kv_layout
    )
    k, v = hostile(90, heads, k_dim), hostile(90, heads, v_dim, seed=1)
    k[1, 0, 0], k[2, 0, 1], k[3, 0, 2] = torch.nan, torch.inf, -torch.inf
    slots = torch.randperm(blocks * block_size)[:90] + block_size
    write(ours, k, v, slots)
    TorchIO().write(by_torch.layers[0], k, v, slots)
    NumbaIO().write(by_numba.layers[0], k, v, slots)
    make_nan_plain(by_torch)
    assert torch.equal(ours.pool.bytes, by_torch.pool.bytes)
    assert torch.equal(ours.pool.bytes, by_numba.pool.bytes)


@pytest.mark.parametrize("kv_dtype", NARROW)
def test_static_scales_give_the_same_bits(kv_dtype: str) -> None:
    """Saturation, subnormal numbers, NaN and both infinities, K and V with scales of their own."""
    k_scale, v_scale = torch.tensor([0.37, 1e-6]).tolist()
    scales = TensorScales((k_scale,), (v_scale,))
    ours, twin = stores(2, one_layer(2, 24, 40), kv_dtype, 16, 8, tensor_scales=scales)
    k, v = hostile(99, 2, 24), hostile(99, 2, 40, seed=1)
    k[1, 0, :3] = torch.tensor([torch.nan, torch.inf, -torch.inf])
    slots = torch.randperm(8 * 16)[:99] + 16
    write(ours, k, v, slots)
    TorchIO().write(twin.layers[0], k, v, slots)
    assert torch.equal(ours.pool.bytes, twin.pool.bytes)


@pytest.mark.parametrize("kv_dtype", ["fp16", "bf16", "fp8_e4m3", "fp8_e5m2"])
def test_every_number_of_the_form_and_every_midpoint_is_rounded_to_even(kv_dtype: str) -> None:
    element = ELEMENTS[kv_dtype]
    bits = torch.arange(256, dtype=torch.uint8) if element.itemsize == 1 else torch.arange(-(2**15), 2**15).short()
    every = bits.view(element).float()
    every = every[every.isfinite()].sort().values
    middle = (every[:-1].double() + every[1:].double()) / 2
    x = torch.cat(
        [every, middle.float(), torch.nextafter(middle.float(), every[1:]), torch.tensor([torch.inf, torch.nan])]
    )
    x = torch.nn.functional.pad(x, (0, -len(x) % 256)).view(-1, 1, 256)
    scales = TensorScales((1.0,), (1.0,)) if element.itemsize == 1 else None
    ours, twin = stores(2, one_layer(1, 256), kv_dtype, 16, -(-len(x) // 16), tensor_scales=scales)
    slots = torch.arange(len(x)) + 16
    write(ours, x, -x, slots, Config(rows=256))
    TorchIO().write(twin.layers[0], x, -x, slots)
    make_nan_plain(ours)
    make_nan_plain(twin)
    assert torch.equal(ours.pool.bytes, twin.pool.bytes)


@pytest.mark.parametrize("kv_dtype", DTYPES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_activations_of_two_bytes_are_read_where_they_lie_in_the_projection(kv_dtype: str, dtype: torch.dtype) -> None:
    """K and V are slices of one tensor with heads of Q between them: nothing is copied, every stride counts."""
    ours, twin = stores(2, one_layer(2, 16), kv_dtype, 4, 6)
    qkv = torch.randn(9, 8, 16).to(dtype)
    k, v = qkv[:, 4:6], qkv[:, 6:]
    slots = torch.randperm(20)[:9] + 4
    write(ours, k, v, slots)
    TorchIO().write(twin.layers[0], k, v, slots)
    assert torch.equal(ours.pool.bytes, twin.pool.bytes)


@pytest.mark.parametrize("kv_dtype", ["bf16", "int8"])
def test_a_latent_layer_stores_one_row_and_one_scale_a_token(kv_dtype: str) -> None:
    ours, twin = stores(2, one_latent_layer(40, 32), kv_dtype, 3, 9)
    k = hostile(20, 1, 40)
    slots = torch.randperm(27)[:20] + 3
    write(ours, k, k[..., :0], slots)
    TorchIO().write(twin.layers[0], k, k[..., :0], slots)
    assert torch.equal(ours.pool.bytes, twin.pool.bytes)


@pytest.mark.parametrize("kv_dtype", ["fp32", "fp8_e4m3"])
def test_k01_rows_that_pad_a_batch_store_nothing(kv_dtype: str) -> None:
    """Slot −1, the null block's slots, and slots beyond the pool are left out; the others land where they should."""
    ours, twin = stores(2, one_layer(2, 16), kv_dtype, 4, 6)
    x = torch.randn(8, 2, 16)
    slots = torch.tensor([-1, 4, 0, 3, 27, 28, 2**40, -(2**40)])
    write(ours, x, -x, slots)
    TorchIO().write(twin.layers[0], x[[1, 4]], -x[[1, 4]], slots[[1, 4]])
    assert torch.equal(ours.pool.bytes, twin.pool.bytes)
    write(ours, x[:0], x[:0], slots[:0])
    assert torch.equal(ours.pool.bytes, twin.pool.bytes)


def test_k05_offsets_beyond_two_to_the_31() -> None:
    """The last block of an untouched pool of 2.2 · 10⁹ one-byte elements."""
    elements = 16 * 2 * 64
    blocks = (1 << 31) // elements + 70_000
    store = KVStore(one_layer(1, 64), "int8", 16, blocks, tensor_scales=TensorScales((1.0,), (1.0,)))
    x = torch.full((1, 1, 64), 5.0)
    write(store, x, -x, torch.tensor([blocks * 16 + 15]))
    view = store.layers[0]
    assert (view.k[blocks, 0, 15] == 5).all()
    assert (view.v[blocks, 0, 15] == -5).all()
    assert not view.k[blocks, 0, :15].any()
    wrapped = blocks * elements - (1 << 32)
    assert wrapped < 0 or not view.k[wrapped // elements].any()


@pytest.mark.parametrize("rows", write_triton.SPACE["rows"])
def test_k26_every_configuration_writes_all_of_its_rows(rows: int) -> None:
    """Into poison, and each against the reference: half a result cannot pass on what another configuration left."""
    ours, twin = stores(2, one_layer(3, 24), "int8", 4, 6)
    x = torch.randn(13, 3, 24)
    slots = torch.randperm(24)[:13] + 4
    write(ours, x, 2 * x, slots, Config(rows=rows))
    TorchIO().write(twin.layers[0], x, 2 * x, slots)
    assert torch.equal(ours.pool.bytes, twin.pool.bytes)
