"""What a KV dtype costs in numbers, apart from what it buys."""

from __future__ import annotations

import pytest

from kvbench.engine.model import Model
from kvbench.geometry.presets import preset
from kvbench.measure.kv_error import kv_error
from kvbench.store.case_columns import METRICS


@pytest.fixture(scope="module")
def model() -> Model:
    return Model.random(preset("tiny-llama"), seed=0)


def test_m34_capacity_prefill_decode_and_error_are_columns_of_their_own() -> None:
    """A KV dtype is never one number."""
    four = ("kv_capacity_tokens", "prefill_tokens_per_busy_s", "decode_tokens_per_busy_s", "kv_error_rel_rms")
    assert set(four) <= METRICS.keys()


def test_m34_full_precision_is_exact_and_fewer_mantissa_bits_are_worse(model: Model) -> None:
    """fp32 against itself is zero; fp16 keeps 10 bits, bf16 7, int8 about 7, e4m3 3 and e5m2 2."""
    found = {dtype: kv_error(model, dtype, 16) for dtype in ("fp32", "fp16", "bf16", "int8", "fp8_e4m3", "fp8_e5m2")}
    assert found["fp32"] == {"kv_error_rel_rms": 0.0, "kv_error_max_abs": 0.0, "kv_top1_agreement": 1.0}
    errors = {dtype: value["kv_error_rel_rms"] for dtype, value in found.items()}
    assert 0 < errors["fp16"] < min(errors["bf16"], errors["int8"])
    assert max(errors["bf16"], errors["int8"]) < errors["fp8_e4m3"] < errors["fp8_e5m2"] < 0.5
    assert all(value["kv_error_max_abs"] > 0 for dtype, value in found.items() if dtype != "fp32")


def test_the_error_does_not_depend_on_the_block_size(model: Model) -> None:
    """Scales are per token and head, so where blocks begin changes nothing but the last bits of a sum."""
    small, large = (kv_error(model, "int8", size)["kv_error_rel_rms"] for size in (4, 64))
    assert small == pytest.approx(large, rel=1e-3)
