"""A case's metrics from its requests and steps, as docs/results.md defines them. Torch-free.

Choices that others make differently:

* A quantile is given only where the largest value lies above it with 95 % confidence: q^n ≤ 0.05 (Wilks 1941). That
  asks for 5 values for p50, 29 for p90, 59 for p95 and 299 for p99.
* A step that computes prompt and decode tokens together counts with its whole length in both busy times. Splitting it
  needs a model of what each part costs, and a split by tokens would flatter decode; `mixed_busy_s` says how much
  counts twice.
* Requests that were rejected or failed are in no latency; they are counted, and for goodput they met nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from kvbench.engine.telemetry import RequestRecord, StepRecord, step_column
from kvbench.measure.client_gaps import client_seconds
from kvbench.measure.slo import FINISHED, goodput
from kvbench.measure.steady_window import steady_window, weighted_median
from kvbench.measure.warnings import RowWarning
from kvbench.spec.suite import SloSettings
from kvbench.store.case_columns import PERCENTILES

REJECTED = "rejected"
HEAVY_RECOMPUTED_SHARE = 0.1
CLIENT_SHARE = 0.1
Value = float | int | None
Floats = NDArray[np.float64]


def case_metrics(
    requests: Sequence[RequestRecord],
    steps: Sequence[StepRecord],
    *,
    slo: SloSettings,
    wall_s: float,
    block_size: int | NDArray[np.int64],
    pieces: int = 1,
    offload: str = "none",
) -> tuple[dict[str, Value], list[RowWarning]]:
    """All metrics of an engine case (columns `ENGINE_METRICS`), None where there is nothing to say, and the warnings.

    `wall_s` runs from the start of the workload to its last token; `block_size` in tokens, of all steps or of each,
    for shares of capacity; `pieces` block tables of one sequence (`PoolLayout`), several in a hybrid model.
    Without a finished request or a step the metrics are empty and the warning `no_metrics` says so (M10).
    """
    finished = [r for r in requests if r.finish_reason in FINISHED and r.output_tokens > 0]
    if not finished or not steps or not wall_s > 0:
        numbers = {"requests": len(requests), "finished": len(finished), "steps": len(steps), "wall_s": wall_s}
        return {}, [RowWarning("no_metrics", numbers)]
    latencies, warnings = _latencies(finished)
    met = goodput(requests, slo)
    metrics: dict[str, Value] = {
        "wall_s": wall_s,
        **_counts(requests, finished),
        **_rates(finished, wall_s),
        **met.metrics(wall_s),
        **latencies,
        **_busy(steps, wall_s),
        **_occupancy(steps, block_size, pieces),
        **_cache(steps),
        **_speculation(steps),
        **_steady(finished, steps),
        "client_share": client_seconds(requests, steps) / wall_s,
        "recomputed_tokens": sum(r.recomputed_tokens for r in requests),
        "passed_over_max": max(r.passed_over for r in requests),
    }
    return metrics, [*_count_warnings(metrics, offload), *met.warnings, *warnings]


def values_needed(percentile: int) -> int:
    """Fewest values for which this percentile is given: the least n with q^n ≤ 0.05."""
    return math.ceil(math.log(0.05) / math.log(percentile / 100))


def _counts(requests: Sequence[RequestRecord], finished: Sequence[RequestRecord]) -> dict[str, Value]:
    rejected = sum(r.finish_reason == REJECTED for r in requests)
    return {
        "requests_total": len(requests),
        "requests_finished": len(finished),
        "requests_rejected": rejected,
        "requests_failed": len(requests) - len(finished) - rejected,
        "input_tokens_total": sum(r.input_tokens for r in finished),
        "output_tokens_total": sum(r.output_tokens for r in finished),
        "cached_tokens_total": sum(r.cached_tokens for r in finished),
    }


def _rates(finished: Sequence[RequestRecord], wall_s: float) -> dict[str, Value]:
    return {
        "output_tokens_per_s": sum(r.output_tokens for r in finished) / wall_s,
        "input_tokens_per_wall_s": sum(r.input_tokens for r in finished) / wall_s,
        "requests_per_s": len(finished) / wall_s,
    }


def _latencies(finished: Sequence[RequestRecord]) -> tuple[dict[str, Value], list[RowWarning]]:
    series: dict[str, list[float | None]] = {
        "ttft": [r.ttft_s for r in finished],
        "tpot": [r.tpot_s for r in finished],
        "itl": [gap for r in finished for gap in r.itl_s],
        "e2e": [r.e2e_s for r in finished],
        "queue": [r.queue_time_s for r in finished],
    }
    metrics: dict[str, Value] = {}
    short: dict[int, list[str]] = {}
    for name, values in series.items():
        known = _known(values)
        metrics |= _summary(name, known)
        if len(known):
            short.setdefault(len(known), []).append(name)
    return metrics, [w for count, names in short.items() for w in _too_few(count, names)]


def _steady(finished: Sequence[RequestRecord], steps: Sequence[StepRecord]) -> dict[str, Value]:
    """The same latencies and the rate within the steady window, as far as its own count supports them."""
    window = steady_window(finished, steps)
    chosen = [] if window is None else window.requests
    metrics: dict[str, Value] = {
        "steady_s": None if window is None else window.seconds,
        "steady_requests": None if window is None else len(chosen),
        "steady_output_tokens_per_s": None if window is None else window.output_tokens / window.seconds,
    }
    for name in ("ttft", "tpot", "e2e"):
        metrics |= _summary(f"steady_{name}", _known(getattr(r, f"{name}_s") for r in chosen))
    return metrics


def _known(values: Iterable[float | None]) -> Floats:
    found = np.array([value for value in values if value is not None], dtype=np.float64)
    return found[np.isfinite(found)]


def _summary(name: str, values: Floats) -> dict[str, Value]:
    found: dict[str, Value] = {f"{name}_mean_s": float(values.mean()) if len(values) else None}
    for p in PERCENTILES:
        enough = len(values) >= values_needed(p)
        found[f"{name}_p{p}_s"] = float(np.percentile(values, p)) if enough else None
    return found


def _too_few(count: int, names: list[str]) -> list[RowWarning]:
    missing = {f"p{p}": values_needed(p) for p in PERCENTILES if count < values_needed(p)}
    return (
        [RowWarning("too_few_samples", {"of": ", ".join(names), "count": count, "missing": missing})] if missing else []
    )


def _busy(steps: Sequence[StepRecord], wall_s: float) -> dict[str, Value]:
    duration = step_column(steps, "duration_s")
    prefill, decode = step_column(steps, "prefill_tokens"), step_column(steps, "decode_tokens")
    prefill_s, decode_s = float(duration[prefill > 0].sum()), float(duration[decode > 0].sum())
    return {
        "prefill_busy_s": prefill_s,
        "decode_busy_s": decode_s,
        "mixed_busy_s": float(duration[(prefill > 0) & (decode > 0)].sum()),
        "prefill_tokens_total": int(prefill.sum()),
        "decode_tokens_total": int(decode.sum()),
        "prefill_tokens_per_busy_s": _over(prefill.sum(), prefill_s),
        "decode_tokens_per_busy_s": _over(decode.sum(), decode_s),
        "prefill_tokens_per_wall_s": float(prefill.sum()) / wall_s,
        "decode_tokens_per_wall_s": float(decode.sum()) / wall_s,
        "steps": len(steps),
        "busy_share": float(duration.sum()) / wall_s,
        "batch_size_mean": float(step_column(steps, "batch_size").mean()),
    }


def _occupancy(steps: Sequence[StepRecord], block_size: int | NDArray[np.int64], pieces: int) -> dict[str, Value]:
    duration = step_column(steps, "duration_s")
    capacity = step_column(steps, "kv_capacity_bytes")
    slots = step_column(steps, "kv_blocks_total") * block_size
    used = _share(step_column(steps, "kv_bytes_used"), capacity)
    active = step_column(steps, "active_sequences")
    metrics: dict[str, Value] = {
        "kv_capacity_bytes": int(capacity.max()),
        "kv_blocks_total": int(step_column(steps, "kv_blocks_total").max()),
        "kv_capacity_tokens": int((step_column(steps, "kv_blocks_total") // pieces * block_size).max()),
        "kv_utilisation_mean": _mean_over_time(used, duration),
        "kv_utilisation_p50": weighted_median(used, duration),
        "kv_utilisation_peak": float(used.max()),
        "active_sequences_max": int(active.max()),
        "active_sequences_mean": _mean_over_time(active, duration),
        "waiting_sequences_max": int(step_column(steps, "waiting_sequences").max()),
        "live_cached_tokens_max": int(step_column(steps, "live_cached_tokens").max()),
    }
    wastes = {"internal": "internal_slots", "reserved": "reserved_slots", "external": "external_blocks"}
    for name, column in wastes.items():
        per_slot = block_size if column.endswith("blocks") else 1
        share = _share(step_column(steps, column) * per_slot, slots)
        metrics |= {f"{name}_share_mean": _mean_over_time(share, duration), f"{name}_share_peak": float(share.max())}
    return metrics


def _cache(steps: Sequence[StepRecord]) -> dict[str, Value]:
    """Totals of the counters over the steps of this sample alone (M22)."""
    summed = (
        "prefix_cache_queries", "prefix_cache_hits", "readmission_queries", "readmission_hits", "preemptions",
        "evictions", "host_offload_bytes", "host_promotions", "disk_offload_bytes", "disk_promotions",
        "swap_out_bytes", "swap_in_bytes", "failed_copies", "swap_refusals", "copy_on_write_copies",
    )  # fmt: skip
    totals = {name: sum(getattr(step, name) for step in steps) for name in summed}
    promoted = sum(s.host_promotions * (s.kv_capacity_bytes // s.kv_blocks_total) for s in steps if s.kv_blocks_total)
    return {
        **totals,
        "prefix_hit_rate": _over(totals["prefix_cache_hits"], totals["prefix_cache_queries"]),
        "host_promoted_bytes": promoted,
        "promotion_stall_s": math.fsum(step.promotion_stall_s for step in steps),
        "prefix_lookup_s": math.fsum(step.prefix_lookup_s for step in steps),
        "context_tokens_total": sum(step.context_tokens for step in steps),
    }


def _speculation(steps: Sequence[StepRecord]) -> dict[str, Value]:
    drafts, accepted = (sum(getattr(step, name) for step in steps) for name in ("draft_tokens", "accepted_tokens"))
    decoded = sum(step.decode_tokens for step in steps)
    return {
        "draft_tokens_total": drafts,
        "accepted_tokens_total": accepted,
        "accepted_share": _over(accepted, drafts),
        "tokens_per_decode": _over(decoded, decoded - accepted),
        "rollbacks": sum(step.rollbacks for step in steps),
    }


def _count_warnings(metrics: dict[str, Value], offload: str) -> list[RowWarning]:
    total = metrics["requests_total"]
    found = []
    for name in ("rejected", "failed"):
        if metrics[f"requests_{name}"]:
            found.append(RowWarning(f"requests_{name}", {name: metrics[f"requests_{name}"], "requests": total}))
    if metrics["failed_copies"]:
        found.append(RowWarning("copies_failed", {"failed_copies": metrics["failed_copies"]}))
    if offload != "none" and not (metrics["host_promotions"] or metrics["disk_promotions"]):
        found.append(RowWarning("offload_never_used", {"host_offload_bytes": metrics["host_offload_bytes"]}))
    computed = (metrics["prefill_tokens_total"] or 0) + (metrics["decode_tokens_total"] or 0)
    if (metrics["client_share"] or 0) > CLIENT_SHARE:
        numbers = {"share": metrics["client_share"], "limit": CLIENT_SHARE, "steps": metrics["steps"]}
        found.append(RowWarning("client_bound", numbers))
    share = (metrics["recomputed_tokens"] or 0) / computed if computed else 0.0
    if share > HEAVY_RECOMPUTED_SHARE:
        numbers = {"preemptions": metrics["preemptions"], "requests": total, "recomputed_share": share}
        found.append(RowWarning("preempted_heavily", numbers))
    return found


def _share(part: Floats, whole: Floats) -> Floats:
    return np.divide(part, whole, out=np.zeros_like(part), where=whole > 0)


def _over(amount: float, base: float) -> float | None:
    return float(amount) / float(base) if base > 0 else None


def _mean_over_time(values: Floats, duration: Floats) -> float:
    total = float(duration.sum())
    return float((values * duration).sum()) / total if total > 0 else float(values.mean())
