"""Single-element arithmetic, the forms for CPUs without half-precision instructions included."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from kvbench_kernels import elements
from kvbench_kernels.runtime import helper

FAST = {"reassoc", "contract", "nsz"}


@pytest.mark.parametrize("fastmath", [False, FAST])
def test_exp2_is_right_under_fast_math_as_well(fastmath: Any) -> None:
    exp2 = elements.exp2

    @helper(fastmath=fastmath)
    def every(x: Any, out: Any) -> None:
        for i in range(x.size):
            out[i] = exp2(x[i])

    x = np.concatenate([np.linspace(-126, 0, 1_000_001), [-126.5, -1e4, -np.inf, np.nan, -0.0]]).astype(np.float32)
    out = np.empty_like(x)
    every(x, out)
    expected = np.exp2(x[:-5].astype(np.float64))
    assert (np.abs(out[:-5] - expected) / expected).max() < 3e-7
    np.testing.assert_array_equal(out[-5:], np.array([0, 0, 0, np.nan, 1], np.float32))


FP8 = {torch.float8_e4m3fn: np.uint8, torch.float8_e5m2: np.bool_}


def assert_same_floats(ours: Any, theirs: torch.Tensor) -> None:
    np.testing.assert_array_equal(ours, theirs.numpy())
    finite = np.isfinite(ours)
    np.testing.assert_array_equal(np.signbit(ours[finite]), np.signbit(theirs.numpy()[finite]))


@pytest.mark.parametrize("has_half", [True, False])
@pytest.mark.parametrize("dtype", FP8)
def test_fp8_decodes_every_pattern_as_torch_does(
    dtype: torch.dtype, has_half: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(elements, "HAS_HALF", has_half and elements.HAS_HALF)
    every = np.arange(256, dtype=np.uint8)
    out = np.empty(256, np.float32)
    decoder()(every.view(FP8[dtype]), out)
    expected = torch.from_numpy(every).view(dtype).float()
    assert_same_floats(out, expected)
    np.testing.assert_array_equal(elements.stored_values(every.view(FP8[dtype])), expected.double().numpy())


@pytest.mark.parametrize("dtype", FP8)
def test_fp8_rounds_to_nearest_even_and_saturates(dtype: torch.dtype) -> None:
    """Every number of the form, the midpoints between neighbours, what lies beside those, and random bit patterns;
    up to the largest number torch's own cast is the reference."""
    put, largest = elements.put, float(torch.finfo(dtype).max)

    @helper()
    def encode_all(x: Any, stored: Any) -> None:
        for i in range(x.size):
            put(stored, i, x[i])

    every = torch.arange(256, dtype=torch.uint8).view(dtype).float().numpy()
    finite = np.unique(every[np.isfinite(every)])
    middle = ((finite[:-1].astype(np.float64) + finite[1:]) / 2).astype(np.float32)
    beside = [np.nextafter(middle, np.float32(side)) for side in (np.inf, -np.inf)]
    bits = np.random.default_rng(0).integers(0, 2**32, 200_000, dtype=np.uint64).astype(np.uint32)
    x = np.concatenate([every, middle, *beside, bits.view(np.float32), np.float32([-0.0, 1e-45, -1e-45])])
    stored = np.empty(x.size, FP8[dtype])
    encode_all(x, stored)
    got = torch.from_numpy(stored.view(np.uint8)).view(dtype).float().numpy()
    within = np.abs(x) <= largest
    assert_same_floats(got[within], torch.from_numpy(x[within]).to(dtype).float())
    beyond = np.isfinite(x) & ~within
    np.testing.assert_array_equal(got[beyond], np.copysign(np.float32(largest), x[beyond]))
    infinite = np.float32(np.nan) if dtype == torch.float8_e4m3fn else np.float32(np.inf)
    np.testing.assert_array_equal(got[np.isinf(x)], np.copysign(infinite, x[np.isinf(x)]))
    assert np.isnan(got[np.isnan(x)]).all()


@pytest.fixture
def in_software(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elements, "HAS_HALF", False)


def decoder() -> Callable[[Any, Any], None]:
    fetch = elements.fetch

    @helper()
    def decode_all(stored: Any, out: Any) -> None:
        for i in range(stored.size):
            out[i] = fetch(stored, i)

    return decode_all


@pytest.mark.usefixtures("in_software")
def test_half_by_bits_decodes_every_pattern() -> None:
    stored = np.arange(-(2**15), 2**15, dtype=np.int16)
    out = np.empty(stored.size, np.float32)
    decoder()(stored, out)
    np.testing.assert_array_equal(out, stored.view(np.float16).astype(np.float32))


@pytest.mark.usefixtures("in_software")
def test_half_by_bits_rounds_to_nearest_even() -> None:
    put = elements.put

    @helper()
    def encode_all(x: Any, stored: Any) -> None:
        for i in range(x.size):
            put(stored, i, x[i])

    every = np.arange(-(2**15), 2**15, dtype=np.int16).view(np.float16).astype(np.float32)
    with np.errstate(invalid="ignore", over="ignore"):
        middle = (every[:-1] + every[1:]) / 2
        x = np.concatenate([every, middle, np.nextafter(middle, np.float32(np.inf)), [65519.996, 65520, 1e30, 1e-30]])
        x = x.astype(np.float32)
        expected = x.astype(np.float16)
    stored = np.empty(x.size, np.int16)
    encode_all(x, stored)
    np.testing.assert_array_equal(stored.view(np.float16), expected)
