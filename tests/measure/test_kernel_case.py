"""A kernel case: right bytes, right error, warnings when it would not settle."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from kvbench.engine.attention.registry import attention_backend
from kvbench.engine.attention.torch_backend import TorchAttention
from kvbench.measure import kernel_timing
from kvbench.measure.kernel_case import build, measure_kernel_case
from kvbench.measure.kernel_geometry import SETS
from kvbench.measure.measured import Measured
from kvbench.spec.suite import KernelSettings, MeasureSettings

SMALL = {"batch": 3, "context": 50, "query_heads": 4, "kv_heads": 2, "head_dim": 16}


QUICK = MeasureSettings(kernel_min_time_s=0.01, kernel_max_time_s=0.02)


def _measure(**settings: object) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    found = _measured(**settings)
    return found.row, found.warnings


def _measured(**settings: object) -> Measured:
    kernel = KernelSettings(**{**SMALL, **settings})  # type: ignore[arg-type]
    return measure_kernel_case(kernel, "cpu", QUICK)


@pytest.mark.parametrize(("kv_dtype", "width", "scale"), [("fp32", 4, 0), ("bf16", 2, 0), ("int8", 1, 4)])
def test_bytes_are_those_of_the_formula(kv_dtype: str, width: int, scale: int) -> None:
    """tokens · kv_heads · (d_k + d_v) · bytes + scales, and queries in and outputs out in fp32."""
    row, _ = _measure(kv_dtype=kv_dtype, attention="torch")
    stored = 3 * 50 * 2 * (2 * 16 * width + 2 * scale)
    assert row["bytes_read_per_call"] == stored + 2 * 3 * 4 * 16 * 4


@pytest.mark.parametrize("attention", ["torch", "numba"])
def test_queries_of_a_gpus_width_count_as_such_and_are_what_the_error_is_of(
    attention: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """bf16 queries and outputs, as on CUDA: 2 bytes an element; the reference has the very same queries."""
    monkeypatch.setattr("kvbench.measure.kernel_case.query_dtype", lambda kernel, device: "bf16")
    row, _ = _measure(kv_dtype="bf16", attention=attention)
    assert row["bytes_read_per_call"] == 3 * 50 * 2 * 2 * 16 * 2 + 2 * 3 * 4 * 16 * 2
    assert 0.0 < row["error_rel_rms"] < 0.01


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
    table = setup.batches[0].block_tables[0]
    assert sorted(table.ravel()) == list(range(1, table.size + 1))
    assert not np.array_equal(table.ravel(), np.sort(table.ravel()))


def test_a_kernel_that_never_settles_says_so_and_its_curve_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_timing, "is_stationary", lambda times: False)
    monkeypatch.setattr(kernel_timing, "WARMUP_CAP_S", 0.05)
    found = _measured(attention="torch")
    assert "not_stationary" in {warning["name"] for warning in found.warnings}
    curve = found.extra["warmup"]
    assert 0 < len(curve["median_s"]) <= kernel_timing.CURVE_POINTS
    assert -(-(found.row["warmup_calls"] - 1) // curve["calls_per_point"]) == len(curve["median_s"])


def test_flushed_calls_rotate_over_disjoint_blocks_that_hold_the_same_numbers() -> None:
    setup = build(KernelSettings(**SMALL, block_size=4, buffers="l2-flushed"), "cpu", seed=0)  # type: ignore[arg-type]
    tables = [batch.block_tables[0] for batch in setup.batches]
    assert len(tables) == SETS
    assert sorted(np.concatenate([table.ravel() for table in tables])) == list(range(1, SETS * tables[0].size + 1))
    backend = attention_backend("torch", "cpu")
    outputs = []
    for batch in setup.batches:
        backend.prepare(batch, setup.store)
        outputs.append(backend.attend(0, setup.queries, setup.store))
    assert all(torch.equal(output, outputs[0]) for output in outputs)


def test_a_kernel_that_writes_nothing_does_not_pass_on_what_lies_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its output is what torch hands out: NaN until it is written, whoever had that memory before."""

    def lazy(self: TorchAttention, layer: int, q: torch.Tensor, *_: object) -> torch.Tensor:
        return torch.empty_like(q)

    _measure(attention="torch")
    monkeypatch.setattr(TorchAttention, "attend", lazy)
    found = _measured(attention="torch")
    assert (found.status, math.isnan(found.row["error_max_abs"])) == ("invalid", True)


@pytest.mark.parametrize("kv_layout", ["hnd", "nhd"])
@pytest.mark.parametrize("kv_scales", ["token-head", "tensor-absmax", "tensor-percentile"])
def test_layouts_and_scales_are_axes_of_kernels_too(kv_scales: str, kv_layout: str) -> None:
    """Static scales spare their bytes and cost some error; a layout changes neither."""
    row, _ = _measure(kv_dtype="int8", kv_scales=kv_scales, kv_layout=kv_layout, kv_percentile=99.9)
    stored = 3 * 50 * 2 * (2 * 16 + (8 if kv_scales == "token-head" else 0))
    assert row["bytes_read_per_call"] == stored + 2 * 3 * 4 * 16 * 4
    assert 0.0 < row["error_rel_rms"] < 0.05  # type: ignore[operator]
