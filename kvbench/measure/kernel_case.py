"""A `kernel` case: paged decode attention of one layer at given shapes, timed alone.

Blocks are handed out in shuffled order, as in a pool that has been in use. With `buffers = "hot"` every call reads the
same blocks; with `l2-flushed` the calls rotate over `SETS` sets of blocks and queries, and the last cache
is evicted before each.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
import torch

from kvbench.engine.attention.registry import Tuned, attention_backend
from kvbench.engine.batch import StepBatch
from kvbench.engine.calibration import Magnitudes, needs_scales
from kvbench.engine.kvstore.scales import TensorScales
from kvbench.engine.kvstore.store import KVStore
from kvbench.engine.model import WEIGHT_DTYPES
from kvbench.measure.kernel_geometry import buffer_sets, one_layer, query_dtype
from kvbench.measure.kernel_timing import time_calls, warm_up
from kvbench.measure.measured import Measured
from kvbench.measure.precision import StoppingRule
from kvbench.measure.redo import Observer
from kvbench.measure.timers import poisoned_memory, rotating, timer_for
from kvbench.spec.suite import KernelSettings, MeasureSettings

COPY_BYTES = 128 << 20
_REFERENCE_SEQUENCES = 2


@dataclass(slots=True)
class KernelSetup:
    """Everything a call needs: a filled store, one decode batch per buffer set, queries, and the unquantised K and V.
    All sets hold the same numbers."""

    store: KVStore
    batches: list[StepBatch]
    queries: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor


def measure_kernel_case(
    kernel: KernelSettings,
    device: str,
    measure: MeasureSettings,
    observer: Observer | None = None,
    tuned: Tuned | None = None,
) -> Measured:
    """Metrics of the case and its warnings; `invalid` when the output is wrong."""
    start = time.perf_counter()
    observer = observer or Observer()
    setup = build(kernel, device, measure.seed)
    calls = _calls(kernel, device, setup, tuned)
    backend, call = calls[0].backend, rotating(calls)
    error = _checked(calls, setup)
    timer = timer_for(device, kernel.buffers)
    set_up = time.perf_counter()
    warm = warm_up(timer, call, observer.watch.clock_is_steady)
    rule = StoppingRule(measure.kernel_precision, measure.kernel_min_time_s, measure.kernel_max_time_s)
    taken = observer.take(lambda _: time_calls(timer, call, rule, observer.core), lambda: None)
    timed = taken.value
    metrics, warnings = timed.metrics(rule)
    bytes_read = _bytes_read(kernel, setup)
    row = {
        "attention_backend": backend,
        "warmup_calls": warm.calls,
        "copy_bytes_per_s": copy_rate(device),
        "setup_s": set_up - start,
        "warmup_s": warm.seconds,
        "measured_s": timed.window_s,
        **metrics,
        "bytes_read_per_call": bytes_read,
        "bytes_per_s": bytes_read / metrics["decode_s"],
        **error,
        **taken.columns(),
    }
    told = [warning.as_dict() for warning in (*warm.warnings(), *warnings, *taken.warnings)]
    found = Measured(row, warnings=told, extra={"warmup": warm.curve(), **taken.extra})
    if not all(np.isfinite(value) for value in error.values()):
        found.status, found.error = "invalid", "the kernel left part of its output unwritten, or wrote NaN"
    return found


@dataclass(slots=True)
class _AttentionCall:
    """One call on one buffer set."""

    backend: str
    attend: Callable[[], torch.Tensor]

    def __call__(self) -> torch.Tensor:
        return self.attend()


def _calls(kernel: KernelSettings, device: str, setup: KernelSetup, tuned: Tuned | None) -> list[_AttentionCall]:
    """One call per buffer set, each with block tables and queries of its own."""
    calls = []
    for batch in setup.batches:
        backend = attention_backend(kernel.attention, device, tuned)
        backend.prepare(batch, setup.store)
        calls.append(_AttentionCall(backend.name, partial(backend.attend, 0, setup.queries.clone(), setup.store)))
    return calls


def _checked(calls: list[_AttentionCall], setup: KernelSetup) -> dict[str, float]:
    """The worst error of any buffer set. Outputs begin as NaN: what is not written is not what another left."""
    found: dict[str, float] = {}
    for call in calls:
        with poisoned_memory():
            output = call()
        for name, value in _error(output, setup).items():
            found[name] = float(np.maximum(found.get(name, 0.0), value))  # NaN wins
    return found


def build(kernel: KernelSettings, device: str, seed: int) -> KernelSetup:
    """A store filled with seeded normal K and V for `batch` sequences of `context` tokens."""
    geometry = one_layer(kernel)
    per_sequence = -(-kernel.context // kernel.block_size)
    sets = buffer_sets(kernel)
    num_blocks = per_sequence * kernel.batch * sets
    rng = np.random.default_rng(seed)
    tables = (rng.permutation(num_blocks) + 1).astype(np.int32).reshape(sets, kernel.batch, per_sequence)
    generator = torch.Generator().manual_seed(seed)
    shape = (kernel.batch, kernel.context, kernel.kv_heads, kernel.head_dim)
    keys = torch.randn(shape, generator=generator)
    values = torch.randn(shape, generator=generator)
    queries = torch.randn((kernel.batch, kernel.query_heads, kernel.head_dim), generator=generator)
    queries = queries.to(WEIGHT_DTYPES[query_dtype(kernel, torch.device(device).type)])
    store = KVStore(
        geometry,
        kernel.kv_dtype,
        kernel.block_size,
        num_blocks,
        device=device,
        kv_layout=kernel.kv_layout,
        tensor_scales=_tensor_scales(kernel, keys, values),
    )
    for table in tables:
        _fill(store, keys, values, table, kernel, device)
    return KernelSetup(store, [_decode_batch(kernel, table) for table in tables], queries.to(device), keys, values)


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


@cache
def copy_rate(device: str) -> float:
    """Bytes per second of a plain copy of `COPY_BYTES`, read and written bytes both counted; once per process."""
    source = torch.ones(COPY_BYTES, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    timer = timer_for(device, "hot")
    times = [timer(lambda: target.copy_(source)).device_s for _ in range(6)][1:]
    return 2 * COPY_BYTES / float(np.median(times))


def _bytes_read(kernel: KernelSettings, setup: KernelSetup) -> int:
    """K, V and their scales, plus queries in and outputs out."""
    from kvbench.geometry.memory import kv_bytes_per_token

    geometry = one_layer(kernel)
    stored = kernel.batch * kernel.context * kv_bytes_per_token(geometry, kernel.kv_dtype, kernel.kv_scales)
    return int(stored) + 2 * setup.queries.numel() * setup.queries.element_size()
