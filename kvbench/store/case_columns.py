"""The columns of cases: what ran, how it ended, every resolved setting, every metric."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cache
from typing import Any

from kvbench.store.columns import SAMPLE_KEYS, Better, Column
from kvbench.store.setting_columns import setting_columns

STATUSES = ("ok", "oom", "oom_implied", "timeout", "crash", "error", "invalid", "skipped")
PERCENTILES = (50, 90, 95, 99)

IDENTITY_COLUMNS = (
    *SAMPLE_KEYS,
    Column("kind", "string", "", "engine (a workload through the engine) or kernel (one kernel at given shapes)."),
    Column("status", "string", "", f"{', '.join(STATUSES)}."),
    Column("error", "string", "", "What went wrong, where something did."),
    Column("warnings", "string", "", 'JSON list of {"name", "numbers"}: what a reader of this row should know.'),
    Column("fingerprint", "string", "", "Digest of the code and kernels that the case used; a resume compares it."),
    Column("clock", "string", "", "wall: times are of the real device; virtual: predicted by a cost model."),
    Column("cost_model", "string", "", "virtual: roofline, or name and digest of a cost-model file."),
    Column("device", "string", "", "cpu or cuda; virtual: of the device that the cost model stands for."),
    Column("device_name", "string", "", "The device by its maker's name."),
    Column("threads", "int64", "", "CPU threads of torch and numba."),
    Column("model", "string", "", "The model's geometry, as resolved."),
    Column("model_family", "string", "", "Its Hugging Face model type."),
    Column("attention_mode", "string", "", "mha, gqa, mqa or mla, with `+window` where some layer has one."),
    Column("attention_backend", "string", "", "The attention kernel that ran, as resolved."),
    Column("tuned", "string", "", "JSON: layer group → tuned kernel configuration; missing where the default ran."),
    Column("weight_dtype_resolved", "string", "", "Weights as computed with."),
    Column(
        "query_dtype", "string", "", "Queries of a kernel case: fp32 on a CPU; on CUDA bf16, or fp32 beside fp32 KV."
    ),
    Column("cache_dtype", "string", "", "K and V as stored."),
    Column("kv_scale_digest", "string", "", "Digest of the static KV scales; missing where the blocks have theirs."),
    Column("workload_digest", "string", "", "The requests that were run, in `workload.parquet`."),
    Column("sharing", "string", "", "Prefix sharing of the workload: none, synthetic or recorded."),
    Column("slo_verdict", "string", "", "met, missed, unresolved (the interval holds the wanted share) or infeasible."),
    Column("steps_stride", "int64", "steps", "One step in so many is in `steps.parquet`; totals here are exact."),
    Column("started_at", "string", "", "When the sample began, UTC."),
    Column("finished_at", "string", "", "When its results were written, UTC; the order of execution."),
    Column("extra", "string", "", "JSON: load, memory, clocks and temperatures `before` and `after` the sample."),
)


def _seconds(name: str, description: str, better: Better = "lower") -> Column:
    return Column(name, "float64", "s", description, better)


def _count(name: str, unit: str, description: str, better: Better = "") -> Column:
    return Column(name, "int64", unit, description, better)


def _ratio(name: str, unit: str, description: str, better: Better = "") -> Column:
    return Column(name, "float64", unit, description, better)


_LATENCIES = {
    "ttft": "Time to first token, from scheduled arrival",
    "tpot": "Time per output token after the first, one value per request",
    "itl": "Gaps between consecutive output tokens, pooled over requests",
    "e2e": "Scheduled arrival to last token",
    "queue": "Scheduled arrival to first scheduled step",
}


def _latency_columns(prefix: str = "", names: Iterable[str] = _LATENCIES, about: str = "") -> list[Column]:
    columns = []
    for name in names:
        column, text = f"{prefix}{name}", f"{about}{_LATENCIES[name]}"
        columns.append(_seconds(f"{column}_mean_s", f"{text}: mean."))
        columns += [_seconds(f"{column}_p{p}_s", f"{text}: {p}th percentile, if enough values.") for p in PERCENTILES]
    return columns


ENGINE_METRICS = (
    _seconds("wall_s", "Start of the workload to its last token.", ""),
    _ratio("output_tokens_per_s", "tokens/s", "Output tokens over wall time.", "higher"),
    _ratio("input_tokens_per_wall_s", "tokens/s", "Prompt tokens of finished requests over wall time.", "higher"),
    _ratio("requests_per_s", "requests/s", "Finished requests over wall time.", "higher"),
    _ratio("goodput_per_s", "requests/s", "Requests that met every SLO over wall time; missing without one.", "higher"),
    _ratio("slo_met_share", "", "Share of all requests that met every SLO; missing without one.", "higher"),
    _ratio("slo_met_low", "", "Lower end of that share's 95 % interval (Wilson)."),
    _ratio("slo_met_high", "", "Its upper end."),
    *_latency_columns(),
    _seconds("steady_s", "Length of the steady window, between ramp-up and drain; missing without one.", ""),
    _count("steady_requests", "requests", "Requests that were first scheduled in the steady window."),
    _ratio("steady_output_tokens_per_s", "tokens/s", "Output tokens of the steady window over its length.", "higher"),
    *_latency_columns("steady_", ("ttft", "tpot", "e2e"), "Requests of the steady window. "),
    _ratio("prefill_tokens_per_busy_s", "tokens/s", "Prompt tokens computed over prefill busy time.", "higher"),
    _ratio("decode_tokens_per_busy_s", "tokens/s", "Decode tokens over decode busy time.", "higher"),
    _ratio("prefill_tokens_per_wall_s", "tokens/s", "Prompt tokens computed over wall time.", "higher"),
    _ratio("decode_tokens_per_wall_s", "tokens/s", "Decode tokens over wall time.", "higher"),
    _seconds("prefill_busy_s", "Length of all steps that computed a prompt token.", ""),
    _seconds("decode_busy_s", "Length of all steps that computed a decode token.", ""),
    _seconds("mixed_busy_s", "Length of the steps that did both; counted in both busy times.", ""),
    _count("requests_total", "requests", "Requests of the workload."),
    _count("requests_finished", "requests", "Requests that ran to their end."),
    _count("requests_rejected", "requests", "Requests that could never fit; in no latency.", "lower"),
    _count("requests_failed", "requests", "Requests that ended in an error; in no latency.", "lower"),
    _count("input_tokens_total", "tokens", "Prompt tokens of finished requests."),
    _count("output_tokens_total", "tokens", "Output tokens of finished requests."),
    _count("cached_tokens_total", "tokens", "Prompt tokens of finished requests found in the prefix cache."),
    _count("prefill_tokens_total", "tokens", "Prompt tokens computed, recomputation included.", "lower"),
    _count("decode_tokens_total", "tokens", "Decode tokens computed."),
    _count("steps", "steps", "Engine steps."),
    _ratio("busy_share", "", "Share of wall time inside engine steps."),
    _ratio("client_share", "", "Share of wall time between steps while a request was being served or waited.", "lower"),
    _ratio("batch_size_mean", "sequences", "Sequences per step, mean over steps."),
    _count("active_sequences_max", "sequences", "Most sequences served at once.", "higher"),
    _ratio("active_sequences_mean", "sequences", "Sequences being served, mean over time in steps."),
    _count("waiting_sequences_max", "sequences", "Longest queue."),
    _count("context_tokens_total", "tokens", "KV tokens read by attention."),
    _count("kv_capacity_bytes", "B", "Size of the block pool."),
    _count("kv_blocks_total", "blocks", "Blocks of the pool."),
    _count("kv_capacity_tokens", "tokens", "Tokens whose KV, in all layers, the pool has slots for.", "higher"),
    _ratio("kv_utilisation_mean", "", "Share of the pool that live sequences hold, mean over time in steps."),
    _ratio("kv_utilisation_p50", "", "The same, median over time in steps."),
    _ratio("kv_utilisation_peak", "", "The same, peak."),
    _ratio("internal_share_mean", "", "Allocated slots without a token, share of capacity, mean over time.", "lower"),
    _ratio("internal_share_peak", "", "The same, peak.", "lower"),
    _ratio("reserved_share_mean", "", "Slots held for tokens that may never come, likewise, mean.", "lower"),
    _ratio("reserved_share_peak", "", "The same, peak.", "lower"),
    _ratio("external_share_mean", "", "Free memory that cannot serve the next request, likewise, mean.", "lower"),
    _ratio("external_share_peak", "", "The same, peak.", "lower"),
    _count("prefix_cache_queries", "tokens", "Prompt tokens looked up, first admissions only."),
    _count("prefix_cache_hits", "tokens", "Of these, found."),
    _seconds("prefix_lookup_s", "Time spent on admission plans: digests, look-ups, counting; 0 by a virtual clock."),
    _ratio("prefix_hit_rate", "", "Hits over look-ups, first admissions only.", "higher"),
    _count("readmission_queries", "tokens", "Tokens looked up when coming back after a preemption."),
    _count("readmission_hits", "tokens", "Of these, found."),
    _count("live_cached_tokens_max", "tokens", "Most tokens that a look-up could hit."),
    _count("preemptions", "", "Preemptions.", "lower"),
    _count("recomputed_tokens", "tokens", "Tokens whose KV was computed again after a preemption.", "lower"),
    _count("passed_over_max", "", "Most admissions that any waiting request was passed over by.", "lower"),
    _count("evictions", "blocks", "Cached blocks that lost their contents."),
    _count("host_offload_bytes", "B", "Bytes copied from device to host."),
    _count("host_promotions", "blocks", "Blocks copied back."),
    _count("host_promoted_bytes", "B", "Bytes copied back."),
    _count("disk_offload_bytes", "B", "Bytes written from host to disk."),
    _count("disk_promotions", "blocks", "Blocks read back from disk."),
    _count("swap_out_bytes", "B", "Bytes of preempted sequences copied to the swap area."),
    _count("swap_in_bytes", "B", "Bytes copied back from the swap area."),
    _seconds("promotion_stall_s", "Time that steps waited for blocks from host, disk or swap area."),
    _count(
        "swap_refusals", "", "Preempted sequences that found no room in the swap area and were recomputed.", "lower"
    ),
    _count("failed_copies", "blocks", "Block copies that failed, whose contents were computed again.", "lower"),
    _count("copy_on_write_copies", "blocks", "Shared blocks copied before a write."),
    _count("draft_tokens_total", "tokens", "Speculative tokens that were verified."),
    _count("accepted_tokens_total", "tokens", "Of these, what became output beyond one token a step."),
    _ratio("accepted_share", "", "Accepted over verified drafts; missing without drafts.", "higher"),
    _ratio("tokens_per_decode", "tokens", "Output tokens of a decoding sequence per step.", "higher"),
    _count("rollbacks", "", "Times that a block table was cut back to what was accepted.", "lower"),
)

KERNEL_METRICS = (
    _seconds("decode_s", "One call of the kernel, median."),
    _seconds("decode_mean_s", "One call, mean."),
    _seconds("decode_mad_s", "Median absolute deviation of the calls.", ""),
    _seconds("decode_host_s", "One call as the host waits for it, median; on a CPU the same."),
    _seconds("decode_low_s", "Lower end of the median's 95 % interval in this process, autocorrelation counted.", ""),
    _seconds("decode_high_s", "Its upper end.", ""),
    _ratio("precision_reached", "", "Half that interval over the median; timing stops on it.", "lower"),
    _count("iterations", "calls", "Timed calls."),
    _count("warmup_calls", "calls", "Calls before the first timed one."),
    _ratio("lag1_autocorrelation", "", "Correlation of neighbouring calls; the process is the unit of replication."),
    _count("bytes_read_per_call", "B", "K, V, scales, queries and outputs moved by one call."),
    _ratio("bytes_per_s", "B/s", "Those bytes over the median call.", "higher"),
    _ratio("copy_bytes_per_s", "B/s", "Plain memory copy measured in the same process, where it was."),
    _ratio("error_max_abs", "", "Largest difference from attention over K and V before they were stored.", "lower"),
    _ratio("error_rel_rms", "", "Root mean square of the difference, relative to the reference's.", "lower"),
)

NUMERIC_ERROR = (
    _ratio(
        "kv_error_rel_rms", "", "Logits with the stored KV dtype against fp32 KV: relative root mean square.", "lower"
    ),
    _ratio("kv_error_max_abs", "", "The same, largest difference.", "lower"),
    _ratio("kv_top1_agreement", "", "Share of positions at which both choose the same token.", "higher"),
)

REBLOCKING = (
    _seconds("reblock_s", "Re-blocking the live pool, books and copies; missing where it never was."),
    _count("reblock_bytes", "B", "KV copied into blocks of the new size."),
    _count("reblock_staging_bytes", "B", "Largest staging buffer meanwhile, beside the pool."),
    _count("reblock_kept_tokens", "tokens", "Cached tokens that could still be found afterwards, per layer group."),
    _count("reblock_dropped_tokens", "tokens", "Cached tokens that could not: no whole new block, or no room."),
    _count("reblock_refusals", "", "Attempts before it that found no room.", "lower"),
    _count("reblock_step", "steps", "First step with the new block size."),
)

STATE = (
    _count("prepared_tokens", "tokens", "Prompt tokens served before the window for the cache's declared state."),
    _count("cached_tokens_at_start", "tokens", "Cached tokens that a look-up could hit when the window began."),
)

SURROUNDINGS = (
    _ratio(
        "foreign_cpu_share", "", "CPU time that others took during the window, of what our CPUs had to give.", "lower"
    ),
    _ratio("steal_share", "", "CPU time that the hypervisor gave to others, likewise.", "lower"),
    _ratio(
        "core_shared_share",
        "",
        "Share of the calls (kernel cases; they were set aside) or of the time (engine cases) in which another tenant "
        "used the core of the calling thread; CPU only.",
        "lower",
    ),
    _count("involuntary_switches", "", "Times that a thread of ours was put aside during the window.", "lower"),
    _count("major_faults", "", "Page faults of ours that waited for a disk, during the window.", "lower"),
    _count("swapped_bytes", "B", "Swapped in or out by the whole machine during the window.", "lower"),
    _ratio("cpu_clock_hz", "Hz", "Clock of our CPUs, mean over the window."),
    _ratio("sm_clock_mean_hz", "Hz", "SM clock of the GPU, mean over the window."),
    _ratio("sm_clock_min_hz", "Hz", "The same, lowest."),
    _ratio("memory_clock_mean_hz", "Hz", "Memory clock of the GPU, mean over the window."),
    _ratio("power_mean_w", "W", "Power draw of the GPU, mean over the window."),
    _ratio("temperature_max_c", "°C", "Temperature of the GPU, highest in the window."),
    _ratio("throttled_share", "", "Share of readings in which something held the GPU's clocks back.", "lower"),
    _count("gpu_memory_peak_bytes", "B", "Memory in use on the GPU, ours and others', highest in the window."),
    _ratio("energy_j", "J", "Rise of the GPU's energy counter over the window; missing without a counter.", "lower"),
    _ratio("energy_per_output_token_j", "J/token", "That energy over the output tokens of the window.", "lower"),
    _count("attempts", "", "Times that the sample was taken; the least disturbed one counts.", "lower"),
)

COSTS = (
    _seconds("setup_s", "Building the engine, before warm-up, calibration included.", ""),
    _seconds("calibration_s", "Finding static KV scales; missing without any.", ""),
    _count("calibration_tokens", "tokens", "Foreign tokens that static KV scales were found on."),
    _seconds("warmup_s", "Warm-up on foreign tokens.", ""),
    _seconds("measured_s", "The measured window.", ""),
    _seconds("case_s", "Everything that the sample took, by the real clock.", ""),
    _count("block_table_bytes", "B", "Block tables and slot mapping of the largest step.", "lower"),
    _count("peak_rss_bytes", "B", "Largest resident memory of the process that measured, so far."),
)

MEASURED = {column.name: column for column in (*ENGINE_METRICS, *KERNEL_METRICS)}
"""Without one of these a sample is not ok (M10)."""
METRICS = {
    **MEASURED,
    **{column.name: column for column in (*NUMERIC_ERROR, *REBLOCKING, *STATE, *SURROUNDINGS, *COSTS)},
}


@cache
def case_columns() -> tuple[Column, ...]:
    """All columns of cases but the axes that no single setting stands for; each name once."""
    found = {column.name: column for column in (*IDENTITY_COLUMNS, *METRICS.values())}
    for column in setting_columns().values():
        found.setdefault(column.name, column)
    head = [column.name for column in IDENTITY_COLUMNS]
    settings = [name for name in found if name not in head and name not in METRICS]
    return tuple(found[name] for name in (*head, *settings, *METRICS))


def warning_names(stored: Any) -> set[str]:
    """Names of the warnings in a row's column of them; damaged text counts as one."""
    try:
        return {str(warning["name"]) for warning in json.loads(stored or "[]")}
    except (ValueError, KeyError, TypeError):
        return {"unreadable_warnings"}
