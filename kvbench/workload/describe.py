"""A workload in numbers: lengths, arrivals, sharing, and what each block size would waste on tails."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kvbench.workload.sharing import shared_prefix_tokens

if TYPE_CHECKING:
    from kvbench.workload.types import Workload

QUANTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
DEFAULT_BLOCK_SIZES = (8, 16, 32, 64, 128, 256)
_MOST_BINS = 16


def describe(workload: Workload, block_sizes: Sequence[int] = DEFAULT_BLOCK_SIZES) -> dict[str, Any]:
    """Plain numbers, ready for JSON; a value that the requests cannot support is None."""
    inputs = np.array([r.input_tokens for r in workload.requests], dtype=np.int64)
    outputs = np.array([r.output_tokens for r in workload.requests], dtype=np.int64)
    shared = shared_prefix_tokens(workload.requests)
    lengths = {"input_tokens": inputs, "output_tokens": outputs, "total_tokens": inputs + outputs}
    return {
        "import": {**asdict(workload.report), "notes": list(workload.report.notes)},
        "digest": workload.digest,
        "seed": workload.seed,
        "requests": len(workload.requests),
        "arrivals": _arrivals(workload),
        "lengths": {name: _summary(values) for name, values in lengths.items()},
        "quantiles_left_out": _left_out(len(inputs)),
        "histograms": {name: histogram(values) for name, values in lengths.items()},
        "kv_tokens": int((inputs + outputs).sum()),
        "sharing": _sharing(workload, inputs, shared),
        "block_sizes": [_block_size(workload, size, inputs, outputs, shared) for size in block_sizes],
    }


def supports(count: int, quantile: float) -> bool:
    """Whether at least one of `count` values is expected to lie beyond the quantile (M35)."""
    return count >= round(1 / (1 - quantile), 9)


def histogram(values: NDArray[np.int64]) -> list[dict[str, int]]:
    """Counts over bins [low, high) whose edges double, the two ends taken from the values."""
    if not len(values):
        return []
    low, high = int(values.min()), int(values.max())
    edges = [low, *(1 << power for power in range(low.bit_length(), high.bit_length())), high + 1]
    edges = sorted(set(edges if len(edges) <= _MOST_BINS + 1 else [low, *edges[-_MOST_BINS:]]))
    counts, _ = np.histogram(values, bins=edges)
    bins = zip(pairwise(edges), counts.tolist(), strict=True)
    return [{"low": low, "high": high, "requests": int(count)} for (low, high), count in bins]


def tail_waste(lengths: NDArray[np.int64], block_size: int) -> int:
    """Slots of last blocks that hold no token: Σ (−T mod B)."""
    return int((-lengths % block_size).sum())


def _summary(values: NDArray[np.int64]) -> dict[str, float | int | None]:
    quantiles = {
        name: float(np.quantile(values, q)) if supports(len(values), q) else None for name, q in QUANTILES.items()
    }
    return {
        "mean": float(values.mean()),
        "min": int(values.min()),
        **quantiles,
        "max": int(values.max()),
        "sum": int(values.sum()),
    }


def _left_out(count: int) -> list[str]:
    needs = {name: math.ceil(round(1 / (1 - q), 9)) for name, q in QUANTILES.items()}
    return [f"{name} needs {need} requests" for name, need in needs.items() if count < need]


def _arrivals(workload: Workload) -> dict[str, float | int | None]:
    """Of requests that do not wait for another one. `burstiness` is the coefficient of variation of the gaps: 1 for
    Poisson arrivals, 0 for a metronome."""
    times = np.array([r.arrival_s for r in workload.requests if r.after is None])
    gaps = np.diff(times)
    duration = float(times[-1] - times[0])
    return {
        "independent": len(times),
        "follow_up": len(workload.requests) - len(times),
        "duration_s": duration,
        "rate_per_s": len(gaps) / duration if duration > 0 else None,
        "burstiness": float(gaps.std() / gaps.mean()) if duration > 0 and len(gaps) > 1 else None,
    }


def _sharing(workload: Workload, inputs: NDArray[np.int64], shared: NDArray[np.int64]) -> dict[str, Any]:
    report = workload.report
    facts: dict[str, Any] = {
        "kind": report.sharing,
        "block_tokens": report.sharing_block_tokens,
        "shared_tokens": int(shared.sum()),
        "shared_share": float(shared.sum() / inputs.sum()),
    }
    if report.sharing_block_tokens is not None:
        facts |= _recorded_blocks(workload)
    return facts


def _recorded_blocks(workload: Workload) -> dict[str, int]:
    """Blocks by which the trace records sharing, the partial last ones included."""
    total = sum(len(request.prompt) for request in workload.requests)
    streams = {segment.stream for request in workload.requests for segment in request.prompt}
    return {"blocks": total, "unique_blocks": len(streams)}


def _block_size(
    workload: Workload,
    size: int,
    inputs: NDArray[np.int64],
    outputs: NDArray[np.int64],
    shared: NDArray[np.int64],
) -> dict[str, Any]:
    """Tail waste at the final length; blocks and hits of prompts, whole blocks only, cold and never evicting."""
    final = inputs + outputs
    waste = tail_waste(final, size)
    blocks, hit_blocks = int((inputs // size).sum()), int((shared // size).sum())
    return {
        "block_size": size,
        "sharing": workload.sharing_label(size),
        "kv_blocks": int((-(-final // size)).sum()),
        "tail_waste_tokens": waste,
        "tail_waste_share": waste / int(final.sum() + waste),
        "prompt_blocks": blocks,
        "unique_prompt_blocks": blocks - hit_blocks,
        "hit_rate_bound": hit_blocks * size / int(inputs.sum()),
    }
