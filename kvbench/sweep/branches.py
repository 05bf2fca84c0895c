"""Requests of several sequences: whether the settings can ever serve them, said when a sweep is planned."""

from __future__ import annotations

from kvbench.cache.forking import request_blocks
from kvbench.engine.cache_settings import cache_settings
from kvbench.engine.memory import plan_sizes
from kvbench.geometry.model import ModelGeometry
from kvbench.spec.engine import EngineSettings
from kvbench.spec.workload import Sampling
from kvbench.workload.build import Workload


def cannot_branch(
    workload: Workload, sampling: Sampling, engine: EngineSettings, geometry: ModelGeometry, max_context: int
) -> str | None:
    """Why requests of several sequences cannot be served under these settings; None when they can, or are of one."""
    width, what = _branches(sampling)
    if width == 1:
        return None
    if width > engine.max_sequences:
        return f"{width} {what} of a request are {width} sequences, and max_sequences is {engine.max_sequences}"
    if engine.allocator != "paged":
        return f'{what} of a request share blocks, which allocator = "{engine.allocator}" cannot'
    if 2 * sampling.beams > geometry.vocab_size:
        return f"{width} beams need a vocabulary of {2 * width} tokens, and {geometry.name} has {geometry.vocab_size}"
    count, arithmetic = too_wide(workload, sampling, engine, geometry, max_context)
    if count == len(workload.requests):
        return f"none of its {count} requests can be served: {arithmetic}; lower sampling, or raise kv_memory"
    return None


def too_wide(
    workload: Workload, sampling: Sampling, engine: EngineSettings, geometry: ModelGeometry, max_context: int
) -> tuple[int, str]:
    """How many requests the engine will reject because all their sequences together outgrow the pool, and the
    arithmetic of the smallest. Samples that may be preempted one by one are never too many."""
    width, what = _branches(sampling)
    if width == 1 or (sampling.beams == 1 and engine.admission != "guaranteed-no-evict"):
        return 0, ""
    sizes = plan_sizes(geometry, engine, None, max_context, 0)
    settings = cache_settings(geometry, engine, sizes, str(engine.weight_dtype))
    needs = [
        request_blocks(settings, width, r.input_tokens, r.input_tokens + r.output_tokens - 1) for r in workload.requests
    ]
    over = [need for need in needs if need > sizes.num_blocks]
    held = f"the {width} {what} of a request may hold {min(over, default=0)} blocks, the pool has {sizes.num_blocks}"
    return len(over), held


def _branches(sampling: Sampling) -> tuple[int, str]:
    return (sampling.n, "samples") if sampling.n > 1 else (sampling.beams, "beams")
