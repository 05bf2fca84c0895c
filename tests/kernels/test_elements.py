"""Single-element arithmetic, the forms for CPUs without half-precision instructions included."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

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
