"""One scale per layer and K or V, beside the pool: what is stored, what is read, and what a wrong scale costs."""

from __future__ import annotations

import pytest
import torch

from kvbench.engine.kvstore.codec import LARGEST, encode
from kvbench.engine.kvstore.layout import ELEMENTS
from kvbench.engine.kvstore.reading_writing import TorchIO
from kvbench.engine.kvstore.scales import TensorScales
from kvbench.engine.kvstore.store import KVStore
from kvbench.geometry.memory import layer_block_bytes
from tests.attention.batches import one_layer, paged, poison, reference
from tests.attention.test_backends import attend
from tests.kvstore.test_store import hostile

NARROW = ("int8", "fp8_e4m3", "fp8_e5m2")


def scales(k: float, v: float) -> TensorScales:
    """For one layer, as float32 holds them."""
    k, v = torch.tensor([k, v]).tolist()
    return TensorScales((k,), (v,))


@pytest.mark.parametrize("kv_dtype", NARROW)
@pytest.mark.parametrize("tokens", [3, 700])
def test_numba_and_torch_store_the_same_bits(kv_dtype: str, tokens: int) -> None:
    """Values beyond the range, subnormal ones, infinities and NaN among them."""
    store, twin = (KVStore(one_layer(2, 24, 40), kv_dtype, 16, 50, tensor_scales=scales(0.37, 1e-6)) for _ in range(2))
    poison(store)
    poison(twin)
    k, v = hostile(tokens, 2, 24), hostile(tokens, 2, 40, seed=1)
    k[1, 0, :3] = torch.tensor([torch.nan, torch.inf, -torch.inf])
    slots = torch.randperm(50 * 16)[:tokens] + 16
    store.write(0, k, v, slots)
    TorchIO().write(twin.layers[0], k, v, slots)
    assert torch.equal(store.pool.bytes, twin.pool.bytes)
    table = torch.arange(50, 0, -1, dtype=torch.int32)
    for ours, theirs in zip(store.gather(0, table, 99), TorchIO().gather(twin.layers[0], table, 0, 99), strict=True):
        torch.testing.assert_close(ours, theirs, atol=0, rtol=0, equal_nan=True)


@pytest.mark.parametrize("layout", ["hnd", "nhd"])
@pytest.mark.parametrize("kv_dtype", NARROW)
@pytest.mark.parametrize("name", ["torch", "numba"])
def test_attention_reads_what_was_divided(name: str, kv_dtype: str, layout: str) -> None:
    """Decodes and a prefill against float64 over the stored form."""
    case = paged(
        kv_dtype, 5, (6, 2), (24, 40), [0, 1, 70, 300, 33], [1, 1, 1, 1, 20], kv_layout=layout,
        tensor_scales=scales(4.5 / LARGEST[ELEMENTS[kv_dtype]], 5 / LARGEST[ELEMENTS[kv_dtype]]),
    )  # fmt: skip
    torch.testing.assert_close(attend(name, case).double(), reference(case, kv_dtype), atol=1e-5, rtol=0)


def test_the_blocks_hold_no_scales() -> None:
    geometry = one_layer(2, 64)
    store = KVStore(geometry, "int8", 16, 2, tensor_scales=scales(1.0, 1.0))
    assert store.block_bytes == 16 * 2 * 2 * 64 == layer_block_bytes(geometry.groups[0], "int8", 16, "tensor-absmax")
    assert layer_block_bytes(geometry.groups[0], "int8", 16) == store.block_bytes + 16 * 2 * 2 * 4
    assert store.layers[0].k_scale is None


@pytest.mark.parametrize("kv_dtype", NARROW)
def test_e78_beyond_the_range_the_bound_holds_only_with_a_calibrated_scale(kv_dtype: str) -> None:
    """Activations of some hundred times the dtype's largest number. With scale 1.0 they saturate: most of the error is
    lost range. With max |x| / m each error is half a step of its own binade, or of the whole range for int8."""
    element = ELEMENTS[kv_dtype]
    most = LARGEST[element]
    x = torch.randn(64, 2, 64) * 100 * most
    calibrated = float(x.abs().max() / most)
    half_step = {"int8": 0.5 * calibrated, "fp8_e4m3": 2.0**-4, "fp8_e5m2": 2.0**-3}[kv_dtype]
    errors = {}
    for scale in (1.0, calibrated):
        store = KVStore(one_layer(2, 64), kv_dtype, 16, 4, tensor_scales=scales(scale, scale))
        store.write(0, x, x, torch.arange(64) + 16)
        got = store.gather(0, torch.arange(1, 5, dtype=torch.int32), 64)[0].transpose(0, 1)
        assert got.isfinite().all(), "saturated, never NaN"
        errors[scale] = float((got - x).square().mean().sqrt() / x.square().mean().sqrt())
        if scale == calibrated:
            bound = half_step if kv_dtype == "int8" else (x.abs() * half_step).clamp(min=calibrated * 2.0**-9)
            assert ((got - x).abs() <= bound * 1.001).all()
        else:
            assert (got.abs() <= most).all()
    assert errors[1.0] > 0.9
    assert errors[calibrated] < 0.1


def test_numbers_that_are_not_finite() -> None:
    """fp8 keeps NaN, e5m2 infinity as well; int8 has neither: 0 and the largest number. Within reach of saturation a
    value just beyond the range becomes the largest, in torch's own cast of e4m3 or not."""
    x = torch.tensor([torch.nan, torch.inf, -torch.inf, 1e30, -1e30, 465.0])
    read = {name: encode(x, ELEMENTS[name], 1.0)[0].float() for name in NARROW}
    nan, inf = torch.nan, torch.inf
    expected = {
        "int8": [0.0, 127.0, -127.0, 127.0, -127.0, 127.0],
        "fp8_e4m3": [nan, nan, nan, 448.0, -448.0, 448.0],
        "fp8_e5m2": [nan, inf, -inf, 57344.0, -57344.0, 448.0],
    }
    for name, values in expected.items():
        torch.testing.assert_close(read[name], torch.tensor(values), atol=0, rtol=0, equal_nan=True)


def test_other_scales_have_another_digest() -> None:
    one = TensorScales((1.0, 2.0), (3.0, 4.0), "absmax", 5)
    assert one.digest == TensorScales((1.0, 2.0), (3.0, 4.0)).digest
    assert len({one.digest, TensorScales((2.0, 1.0), (3.0, 4.0)).digest, TensorScales((1.0,), (2.0,)).digest}) == 3
