"""What the columns of one sample must say together, whichever clock it ran by. Torch-free.

Requests and steps are two accounts of the same thing, written by different code: tokens, hits, drafts and preemptions
must come out equal, times must add up, and nothing may hold more than there is.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from kvbench.engine.telemetry import RequestRecord, StepRecord, step_column
from kvbench.measure.slo import FINISHED
from kvbench.measure.warnings import RowWarning

_TOLERANCE_S = 1e-6
"""Of sums of times, beyond one part in a million"""
_MOST_SAID = 3


def contradictions(
    requests: Sequence[RequestRecord], steps: Sequence[StepRecord], *, wall_s: float, width: int = 1
) -> list[RowWarning]:
    """One warning per statement that does not hold, the first three; `width` sequences per request."""
    found = [*_counts(requests, steps, width), *_request_times(requests, width), *_step_times(steps, wall_s)]
    found += _capacity(steps)
    return [RowWarning("contradiction", {"what": w, "left": a, "right": b}) for w, a, b in found[:_MOST_SAID]]


Statement = tuple[str, float, float]


def _counts(requests: Sequence[RequestRecord], steps: Sequence[StepRecord], width: int) -> Iterator[Statement]:
    """Sums over steps against sums over requests."""
    for name, of_request in (
        ("prefix_cache_hits", "cached_tokens"),
        ("preemptions", "preemptions"),
        ("draft_tokens", "draft_tokens"),
        ("accepted_tokens", "accepted_tokens"),
    ):
        left, right = _total(steps, name), _total(requests, of_request)
        if left != right:
            yield f"{name} of steps, {of_request} of requests", left, right
    queries, hits = _total(steps, "prefix_cache_queries"), _total(steps, "prefix_cache_hits")
    if hits > queries:
        yield "prefix_cache_hits, prefix_cache_queries", hits, queries
    prompts = _total(requests, "input_tokens")
    if queries > prompts:
        yield "prefix_cache_queries, input_tokens of requests", queries, prompts
    if width == 1 and all(r.finish_reason in FINISHED for r in requests):
        yield from _tokens(requests, steps)


def _tokens(requests: Sequence[RequestRecord], steps: Sequence[StepRecord]) -> Iterator[Statement]:
    """Every token in or out was found, computed once, or computed again after a preemption."""
    computed = _total(steps, "prefill_tokens") + _total(steps, "decode_tokens")
    wanted = sum(r.input_tokens - r.cached_tokens + r.output_tokens - 1 + r.recomputed_tokens for r in requests)
    if computed != wanted:
        yield "computed tokens of steps, input − hits + output − 1 + recomputed of requests", computed, wanted
    if _total(steps, "admissions") < len(requests):
        yield "admissions of steps, requests", _total(steps, "admissions"), len(requests)


def _request_times(requests: Sequence[RequestRecord], width: int) -> Iterator[Statement]:
    """The parts of each finished request add up to the whole."""
    for request in requests:
        if request.finish_reason not in FINISHED:
            continue
        queue, prefill, ttft, e2e = request.queue_time_s, request.prefill_time_s, request.ttft_s, request.e2e_s
        if queue is None or prefill is None or ttft is None or e2e is None:
            continue
        if not _close(queue + prefill, ttft):
            yield f"request {request.request_id}: queue + prefill, ttft", queue + prefill, ttft
        total = ttft + math.fsum(request.itl_s)
        if width == 1 and not _close(total, e2e):
            yield f"request {request.request_id}: ttft + gaps, e2e", total, e2e
        if width == 1 and len(request.itl_s) != request.output_tokens - 1:
            gaps = len(request.itl_s)
            yield f"request {request.request_id}: gaps, output tokens − 1", gaps, request.output_tokens - 1


def _step_times(steps: Sequence[StepRecord], wall_s: float) -> Iterator[Statement]:
    """Steps follow one another and end with the window."""
    begins, lengths = step_column(steps, "t_s"), step_column(steps, "duration_s")
    ends = begins + lengths
    early = np.flatnonzero(begins[1:] < ends[:-1] - _TOLERANCE_S * np.maximum(1.0, ends[:-1]))
    if len(early):
        at = int(early[0])
        yield f"step {at + 1} begins before step {at} ends", float(begins[at + 1]), float(ends[at])
    if len(ends) and ends[-1] > wall_s + _TOLERANCE_S * max(1.0, wall_s):
        yield "end of the last step, wall_s", float(ends[-1]), wall_s


def _capacity(steps: Sequence[StepRecord]) -> Iterator[Statement]:
    """Nobody holds more than there is, at any step."""
    total, free = step_column(steps, "kv_blocks_total"), step_column(steps, "kv_blocks_free")
    used, capacity = step_column(steps, "kv_bytes_used"), step_column(steps, "kv_capacity_bytes")
    per_block = np.divide(capacity, total, out=np.ones_like(capacity), where=total > 0)
    checks = (
        ("kv_bytes_used, kv_capacity_bytes", used, capacity),
        ("kv_blocks_free and used, kv_blocks_total", free + used / per_block, total),
        ("external_blocks, kv_blocks_free", step_column(steps, "external_blocks"), free),
    )
    for what, left, right in checks:
        over = np.flatnonzero(left > right + 1e-9)
        if len(over):
            at = int(over[0])
            yield f"step {steps[at].step}: {what}", float(left[at]), float(right[at])


def _close(left: float, right: float) -> bool:
    return abs(left - right) <= _TOLERANCE_S * max(1.0, abs(right))


def _total(records: Sequence[RequestRecord] | Sequence[StepRecord], name: str) -> int:
    return sum(getattr(record, name) for record in records)
