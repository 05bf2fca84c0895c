"""A kernel case: right bytes, right error, warnings when it would not settle."""

from __future__ import annotations

import numpy as np
import pytest

from kvbench.measure import kernel_case
from kvbench.measure.kernel_case import build, measure_kernel_case
from kvbench.spec.suite import KernelSettings

SMALL = {"batch": 3, "context": 50, "query_heads": 4, "kv_heads": 2, "head_dim": 16}


def _measure(**settings: object) -> tuple[dict[str, object], list[dict[str, object]]]:
    kernel = KernelSettings(**{**SMALL, **settings})  # type: ignore[arg-type]
    return measure_kernel_case(kernel, "cpu", min_time_s=0.01, seed=0)


@pytest.mark.parametrize(("kv_dtype", "width", "scale"), [("fp32", 4, 0), ("bf16", 2, 0), ("int8", 1, 4)])
def test_bytes_are_those_of_the_formula(kv_dtype: str, width: int, scale: int) -> None:
    """tokens · kv_heads · (d_k + d_v) · bytes + scales, and queries in and outputs out in fp32."""
    row, _ = _measure(kv_dtype=kv_dtype, attention="torch")
    stored = 3 * 50 * 2 * (2 * 16 * width + 2 * scale)
    assert row["bytes_read_per_call"] == stored + 2 * 3 * 4 * 16 * 4


@pytest.mark.parametrize("attention", ["torch", "numba"])
def test_error_is_that_of_the_stored_form(attention: str) -> None:
    """fp32 keeps what it was given; bf16 has 8 bits of mantissa, int8 about 7 of the largest element."""
    errors = {
        dtype: float(_measure(kv_dtype=dtype, attention=attention)[0]["error_rel_rms"])  # type: ignore[arg-type]
        for dtype in ("fp32", "fp16", "bf16", "int8")
    }
    assert errors["fp32"] < 1e-5
    assert errors["fp32"] < errors["fp16"] < errors["bf16"] < errors["int8"] < 0.03


def test_the_case_reads_blocks_in_shuffled_order_and_no_block_twice() -> None:
    setup = build(KernelSettings(**SMALL, block_size=4), "cpu", seed=0)  # type: ignore[arg-type]
    table = setup.batch.block_tables[0]
    assert sorted(table.ravel()) == list(range(1, table.size + 1))
    assert not np.array_equal(table.ravel(), np.sort(table.ravel()))


def test_a_kernel_that_never_settles_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_case, "is_stationary", lambda times: False)
    monkeypatch.setattr(kernel_case, "WARMUP_CAP_S", 0.05)
    _, warnings = _measure(attention="torch")
    assert [warning["name"] for warning in warnings] == ["not_stationary"]


def test_time_figures_agree_with_numpy() -> None:
    times = [3.0, 1.0, 2.0, 10.0]
    row = kernel_case._time_metrics(times, 100)
    assert row["decode_s"] == np.median(times)
    assert row["decode_mad_s"] == np.median(np.abs(np.array(times) - np.median(times)))
    assert row["bytes_per_s"] == pytest.approx(100 / 2.5)


@pytest.mark.parametrize("kv_layout", ["hnd", "nhd"])
@pytest.mark.parametrize("kv_scales", ["token-head", "tensor-absmax", "tensor-percentile"])
def test_layouts_and_scales_are_axes_of_kernels_too(kv_scales: str, kv_layout: str) -> None:
    """Static scales spare their bytes and cost some error; a layout changes neither."""
    row, _ = _measure(kv_dtype="int8", kv_scales=kv_scales, kv_layout=kv_layout, kv_percentile=99.9)
    stored = 3 * 50 * 2 * (2 * 16 + (8 if kv_scales == "token-head" else 0))
    assert row["bytes_read_per_call"] == stored + 2 * 3 * 4 * 16 * 4
    assert 0.0 < row["error_rel_rms"] < 0.05  # type: ignore[operator]
