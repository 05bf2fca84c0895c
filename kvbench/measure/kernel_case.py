"""A `kernel` case: paged decode attention of one layer at given shapes, timed alone.

The buffers are hot: every call reads the same blocks, and the row says so. Blocks are handed out in shuffled order,
as in a pool that has been in use.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch

from kvbench.engine.attention.registry import attention_backend
from kvbench.engine.batch import StepBatch
from kvbench.engine.calibration import Magnitudes, needs_scales
from kvbench.engine.kvstore.scales import TensorScales
from kvbench.engine.kvstore.store import KVStore
from kvbench.measure.kernel_geometry import one_layer
from kvbench.measure.stationary import is_stationary, lag1
from kvbench.spec.suite import KernelSettings

WARMUP_CAP_S = 3.0
MIN_CALLS = 20
COPY_BYTES = 128 << 20
MAX_CALLS = 20_000
_REFERENCE_SEQUENCES = 2


@dataclass(slots=True)
class KernelSetup:
    """Everything a call needs: a filled store, one decode batch, queries, and the unquantised K and V."""

    store: KVStore
    batch: StepBatch
    queries: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor


def measure_kernel_case(
    kernel: KernelSettings, device: str, *, min_time_s: float, seed: int
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Metrics of the case and its warnings."""
    start = time.perf_counter()
    setup = build(kernel, device, seed)
    backend = attention_backend(kernel.attention, device)
    backend.prepare(setup.batch, setup.store)

    def call() -> torch.Tensor:
        return backend.attend(0, setup.queries, setup.store)

    error = _error(call(), setup)
    timer = _timer(device)
    set_up = time.perf_counter()
    steady, warmup_calls = _warm_up(timer, call)
    warm = time.perf_counter()
    times = _timed(timer, call, min_time_s)
    row = {
        "attention_backend": backend.name,
        "buffers": "hot",
        "warmup_calls": warmup_calls,
        "copy_bytes_per_s": copy_rate(device),
        "setup_s": set_up - start,
        "warmup_s": warm - set_up,
        "measured_s": sum(times),
        **_time_metrics(times, _bytes_read(kernel, setup)),
        **error,
    }
    warnings = [] if steady else [{"name": "not_stationary", "numbers": {"warmup_s": WARMUP_CAP_S}}]
    return row, warnings


def build(kernel: KernelSettings, device: str, seed: int) -> KernelSetup:
    """A store filled with seeded normal K and V for `batch` sequences of `context` tokens."""
    geometry = one_layer(kernel)
    per_sequence = -(-kernel.context // kernel.block_size)
    num_blocks = per_sequence * kernel.batch
    rng = np.random.default_rng(seed)
    tables = (rng.permutation(num_blocks) + 1).astype(np.int32).reshape(kernel.batch, per_sequence)
    generator = torch.Generator().manual_seed(seed)
    shape = (kernel.batch, kernel.context, kernel.kv_heads, kernel.head_dim)
    keys = torch.randn(shape, generator=generator)
    values = torch.randn(shape, generator=generator)
    queries = torch.randn((kernel.batch, kernel.query_heads, kernel.head_dim), generator=generator)
    store = KVStore(
        geometry,
        kernel.kv_dtype,
        kernel.block_size,
        num_blocks,
        device=device,
        kv_layout=kernel.kv_layout,
        tensor_scales=_tensor_scales(kernel, keys, values),
    )
    _fill(store, keys, values, tables, kernel, device)
    return KernelSetup(store, _decode_batch(kernel, tables), queries.to(device), keys, values)


def _tensor_scales(kernel: KernelSettings, keys: torch.Tensor, values: torch.Tensor) -> TensorScales | None:
    """Static scales of the very numbers that are stored; None where the blocks have theirs."""
    if not needs_scales(kernel.kv_dtype, kernel.kv_scales):
        return None
    found = []
    for x in (keys, values):
        magnitudes = Magnitudes()
        magnitudes.add(x)
        found.append(magnitudes.scale(kernel.kv_dtype, kernel.kv_scales, kernel.kv_percentile))
    return TensorScales((found[0],), (found[1],), kernel.kv_scales, keys.shape[0] * keys.shape[1])


def _fill(
    store: KVStore,
    keys: torch.Tensor,
    values: torch.Tensor,
    tables: np.ndarray[Any, np.dtype[np.int32]],
    kernel: KernelSettings,
    device: str,
) -> None:
    positions = np.arange(kernel.context)
    for sequence in range(kernel.batch):
        blocks = tables[sequence, positions // kernel.block_size].astype(np.int64)
        slots = torch.from_numpy(blocks * kernel.block_size + positions % kernel.block_size).to(device)
        store.write(0, keys[sequence].to(device), values[sequence].to(device), slots)


def _decode_batch(kernel: KernelSettings, tables: np.ndarray[Any, np.dtype[np.int32]]) -> StepBatch:
    count = kernel.batch
    last = np.full(count, kernel.context - 1, dtype=np.int64)
    slots = tables[:, -1].astype(np.int64) * kernel.block_size + last % kernel.block_size
    return StepBatch(
        token_ids=np.zeros(count, dtype=np.int64),
        positions=last,
        slots=slots[None, :],
        block_tables=tables[None],
        query_starts=np.arange(count + 1, dtype=np.int32),
        context_lengths=np.full(count, kernel.context, dtype=np.int32),
        num_decodes=count,
        logit_rows=np.arange(count, dtype=np.int64),
    )


def _error(output: torch.Tensor, setup: KernelSetup) -> dict[str, float]:
    """Against float64 attention over the K and V before they were stored: what the KV dtype costs."""
    count = min(_REFERENCE_SEQUENCES, len(setup.keys))
    group = setup.queries.shape[1] // setup.keys.shape[2]
    q = setup.queries[:count].double().cpu()
    k = setup.keys[:count].double().repeat_interleave(group, dim=2)
    v = setup.values[:count].double().repeat_interleave(group, dim=2)
    scores = torch.einsum("bhd,bthd->bht", q, k) / q.shape[-1] ** 0.5
    expected = torch.einsum("bht,bthd->bhd", scores.softmax(-1), v)
    difference = output[:count].double().cpu() - expected
    return {
        "error_max_abs": float(difference.abs().max()),
        "error_rel_rms": float(difference.square().mean().sqrt() / expected.square().mean().sqrt()),
    }


Timer = Callable[[Callable[[], torch.Tensor]], float]


def _timer(device: str) -> Timer:
    return _cuda_time if device == "cuda" else _host_time


def _host_time(call: Callable[[], torch.Tensor]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _cuda_time(call: Callable[[], torch.Tensor]) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    call()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / 1e3


@cache
def copy_rate(device: str) -> float:
    """Bytes per second of a plain copy of `COPY_BYTES`, read and written bytes both counted; once per process."""
    source = torch.ones(COPY_BYTES, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    timer = _timer(device)
    times = [timer(lambda: target.copy_(source)) for _ in range(6)][1:]
    return 2 * COPY_BYTES / float(np.median(times))


def _warm_up(timer: Timer, call: Callable[[], torch.Tensor]) -> tuple[bool, int]:
    """Call until stationary or for `WARMUP_CAP_S`; the first call (compilation, page faults) is dropped."""
    timer(call)
    times: list[float] = []
    stop = time.perf_counter() + WARMUP_CAP_S
    while not is_stationary(times):
        if time.perf_counter() > stop:
            return False, len(times) + 1
        times.append(timer(call))
    return True, len(times) + 1


def _timed(timer: Timer, call: Callable[[], torch.Tensor], min_time_s: float) -> list[float]:
    times: list[float] = []
    total = 0.0
    while (total < min_time_s or len(times) < MIN_CALLS) and len(times) < MAX_CALLS:
        times.append(timer(call))
        total += times[-1]
    return times


def _bytes_read(kernel: KernelSettings, setup: KernelSetup) -> int:
    """K, V and their scales, plus queries in and outputs out."""
    from kvbench.geometry.memory import kv_bytes_per_token

    geometry = one_layer(kernel)
    stored = kernel.batch * kernel.context * kv_bytes_per_token(geometry, kernel.kv_dtype, kernel.kv_scales)
    return int(stored) + 2 * setup.queries.numel() * setup.queries.element_size()


def _time_metrics(times: list[float], bytes_read: int) -> dict[str, Any]:
    values = np.asarray(times)
    median = float(np.median(values))
    return {
        "iterations": len(times),
        "decode_s": median,
        "decode_mean_s": float(values.mean()),
        "decode_mad_s": float(np.median(np.abs(values - median))),
        "lag1_autocorrelation": lag1(values),
        "bytes_read_per_call": bytes_read,
        "bytes_per_s": bytes_read / median,
    }
