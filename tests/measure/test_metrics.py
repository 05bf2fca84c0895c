"""Metrics against a naive twin: plain loops over the records, other formulas, other percentile code."""

from __future__ import annotations

import math
from pathlib import Path
from statistics import mean, quantiles
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from kvbench.engine.telemetry import RequestRecord, StepRecord
from kvbench.measure.client_gaps import client_seconds
from kvbench.measure.metrics import case_metrics, values_needed
from kvbench.measure.slo import goodput, wilson
from kvbench.measure.steady_window import steady_window
from kvbench.measure.warnings import TEXTS, text
from kvbench.spec.suite import SloSettings
from kvbench.store.case_columns import ENGINE_METRICS
from tests.store.samples import rejected_record, request_record, step_record

BLOCK = 4
NO_SLO = SloSettings()


def metrics_of(
    requests: list[RequestRecord],
    steps: list[StepRecord],
    *,
    wall_s: float = 10.0,
    slo: SloSettings = NO_SLO,
    **more: Any,
) -> dict[str, Any]:
    return case_metrics(requests, steps, slo=slo, wall_s=wall_s, block_size=BLOCK, **more)[0]


def warnings_of(requests: list[RequestRecord], steps: list[StepRecord], **more: Any) -> dict[str, dict[str, Any]]:
    found = case_metrics(requests, steps, slo=NO_SLO, wall_s=10.0, block_size=BLOCK, **more)[1]
    return {w.name: w.numbers for w in found}


seconds = st.floats(1e-6, 1e3)


@st.composite
def served(draw: st.DrawFn) -> tuple[list[RequestRecord], list[StepRecord]]:
    requests = []
    for number in range(draw(st.integers(1, 12))):
        if draw(st.booleans()) and number:
            requests.append(rejected_record(number))
            continue
        gaps = draw(st.lists(seconds, max_size=5))
        ttft, queue = draw(seconds), draw(seconds)
        tpot = sum(gaps) / len(gaps) if gaps else None
        requests.append(
            request_record(
                number,
                output_tokens=len(gaps) + 1,
                itl_s=gaps,
                ttft_s=ttft,
                tpot_s=tpot,
                queue_time_s=queue,
                e2e_s=ttft + sum(gaps),
                recomputed_tokens=draw(st.integers(0, 3)),
            )
        )
    count = st.integers(0, 40)
    steps = [
        step_record(
            n,
            duration_s=draw(seconds),
            prefill_tokens=draw(count),
            decode_tokens=draw(count),
            batch_size=draw(count),
            kv_bytes_used=draw(st.integers(0, 1600)),
            internal_slots=draw(st.integers(0, 64)),
            reserved_slots=draw(st.integers(0, 64)),
            external_blocks=draw(st.integers(0, 16)),
            prefix_cache_queries=draw(count),
            prefix_cache_hits=draw(count),
            host_promotions=draw(count),
            preemptions=draw(count),
            promotion_stall_s=draw(seconds),
            active_sequences=draw(count),
        )
        for n in range(draw(st.integers(1, 10)))
    ]
    return requests, steps


@settings(max_examples=60, deadline=None)
@given(served(), seconds)
def test_metrics_agree_with_the_naive_twin(case: tuple[list[RequestRecord], list[StepRecord]], wall_s: float) -> None:
    requests, steps = case
    found = metrics_of(requests, steps, wall_s=wall_s)
    for name, value in naive(requests, steps, wall_s).items():
        assert found[name] == (None if value is None else pytest.approx(value, rel=1e-9, abs=1e-12)), name


def naive(requests: list[RequestRecord], steps: list[StepRecord], wall_s: float) -> dict[str, float | None]:
    done = [r for r in requests if r.finish_reason != "rejected"]
    time = sum(s.duration_s for s in steps)
    prefill_s = sum(s.duration_s for s in steps if s.prefill_tokens)
    decode_s = sum(s.duration_s for s in steps if s.decode_tokens)
    queries = sum(s.prefix_cache_queries for s in steps)
    gaps = [g for r in done for g in r.itl_s]
    tpots = [sum(r.itl_s) / len(r.itl_s) for r in done if r.itl_s]
    tokens = sum(1 + len(r.itl_s) for r in done)
    return {
        "requests_rejected": len(requests) - len(done),
        "output_tokens_total": tokens,
        "output_tokens_per_s": tokens / wall_s,
        "requests_per_s": len(done) / wall_s,
        "ttft_mean_s": mean(r.ttft_s or 0 for r in done),
        "queue_mean_s": mean(r.queue_time_s or 0 for r in done),
        "tpot_mean_s": mean(tpots) if tpots else None,
        "itl_mean_s": mean(gaps) if gaps else None,
        "ttft_p50_s": naive_percentile([r.ttft_s or 0 for r in done], 50),
        "itl_p50_s": naive_percentile(gaps, 50),
        "itl_p90_s": naive_percentile(gaps, 90),
        "prefill_tokens_per_busy_s": sum(s.prefill_tokens for s in steps) / prefill_s if prefill_s else None,
        "decode_tokens_per_busy_s": sum(s.decode_tokens for s in steps) / decode_s if decode_s else None,
        "busy_share": time / wall_s,
        "kv_utilisation_mean": sum(s.kv_bytes_used / 1600 * s.duration_s for s in steps) / time,
        "kv_utilisation_peak": max(s.kv_bytes_used for s in steps) / 1600,
        "internal_share_mean": sum(s.internal_slots / 64 * s.duration_s for s in steps) / time,
        "reserved_share_peak": max(s.reserved_slots for s in steps) / 64,
        "external_share_peak": max(s.external_blocks for s in steps) / 16,
        "prefix_hit_rate": sum(s.prefix_cache_hits for s in steps) / queries if queries else None,
        "host_promoted_bytes": sum(s.host_promotions * 100 for s in steps),
        "promotion_stall_s": sum(s.promotion_stall_s for s in steps),
        "preemptions": sum(s.preemptions for s in steps),
        "recomputed_tokens": sum(r.recomputed_tokens for r in done),
        "active_sequences_max": max(s.active_sequences for s in steps),
        "batch_size_mean": mean(s.batch_size for s in steps),
    }


def naive_percentile(values: list[float], percent: int) -> float | None:
    """Linear interpolation by the standard library; None below the sample size at which 0.05 is reached."""
    size = 0
    while (percent / 100) ** size > 0.05:
        size += 1
    return quantiles(values, n=100, method="inclusive")[percent - 1] if len(values) >= size else None


def test_every_engine_metric_is_a_column_and_the_other_way_round() -> None:
    assert set(metrics_of([request_record()], [step_record()])) == {c.name for c in ENGINE_METRICS}


def test_median_over_time_is_not_the_median_over_steps() -> None:
    steps = [
        step_record(0, duration_s=9.0, kv_bytes_used=1600),
        *(step_record(n, kv_bytes_used=0) for n in range(1, 6)),
    ]
    assert metrics_of([request_record()], steps)["kv_utilisation_p50"] == 1.0


def test_m10_zero_metrics_are_never_ok() -> None:
    """Nothing finished, no step, or no time: no metric at all, which the store takes for `invalid`, and the reason."""
    for requests, steps, wall_s in (
        ([], [], 1.0),
        ([rejected_record()], [step_record()], 1.0),
        ([request_record()], [], 1.0),
    ):
        found, warnings = case_metrics(requests, steps, slo=NO_SLO, wall_s=wall_s, block_size=BLOCK)
        assert (found, warnings[0].name) == ({}, "no_metrics")
    assert metrics_of([request_record()], [step_record()], wall_s=0.0) == {}
    assert metrics_of([request_record()], [step_record()])["output_tokens_per_s"] is not None


def test_m22_hit_rate_counts_first_admissions_once() -> None:
    """Look-ups of readmitted sequences stand apart and do not touch the rate."""
    steps = [step_record(prefix_cache_queries=80, prefix_cache_hits=20, readmission_queries=80, readmission_hits=80)]
    found = metrics_of([request_record()], steps)
    assert (found["prefix_hit_rate"], found["readmission_queries"], found["readmission_hits"]) == (0.25, 80, 80)
    assert metrics_of([request_record()], [step_record()])["prefix_hit_rate"] is None


def test_capacity_counts_a_token_once_though_a_hybrid_model_stores_it_in_several_pieces() -> None:
    steps = [step_record(kv_blocks_total=100)]
    assert metrics_of([request_record()], steps)["kv_capacity_tokens"] == 100 * BLOCK
    hybrid = metrics_of([request_record()], steps, pieces=3)
    assert hybrid["kv_capacity_tokens"] == 33 * BLOCK
    assert hybrid["kv_blocks_total"] == 100


def test_m30_latency_counts_from_the_scheduled_arrival_and_queueing_stands_apart() -> None:
    """64 requests at once, eight served at a time for one second each: queue time is its own metric and inside TTFT."""
    requests = [
        request_record(
            n, arrival_s=0.0, queue_time_s=n // 8 * 1.0, prefill_time_s=0.5, ttft_s=n // 8 + 0.5, e2e_s=n // 8 + 1.0
        )
        for n in range(64)
    ]
    found = metrics_of(requests, [step_record()])
    assert (found["queue_mean_s"], found["ttft_mean_s"]) == (3.5, 4.0)
    assert (found["queue_p50_s"], found["ttft_p50_s"], found["e2e_p95_s"]) == (3.5, 4.0, 8.0)


def test_m31_tpot_is_by_tokens_produced_and_ttft_is_in_no_gap() -> None:
    """Requests that stop early count what they produced; a single token has no TPOT; gaps pool without TTFT."""
    early = request_record(0, output_tokens=2, itl_s=[0.4], tpot_s=0.4, ttft_s=5.0, finish_reason="stop")
    single = request_record(1, output_tokens=1, itl_s=[], tpot_s=None, ttft_s=7.0)
    found = metrics_of([early, single], [step_record()])
    assert (found["tpot_mean_s"], found["itl_mean_s"], found["output_tokens_total"]) == (0.4, 0.4, 3)


def test_m33_throughput_over_its_own_busy_time_and_over_wall_time_named_so() -> None:
    """Prefill alone for 1 s, decode alone for 2 s, both together for 3 s, idle for 4 s."""
    steps = [
        step_record(0, duration_s=1.0, prefill_tokens=100),
        step_record(1, duration_s=2.0, decode_tokens=8),
        step_record(2, duration_s=3.0, prefill_tokens=60, decode_tokens=12),
    ]
    found = metrics_of([request_record()], steps, wall_s=10.0)
    assert found["prefill_tokens_per_busy_s"] == pytest.approx(160 / 4)
    assert found["decode_tokens_per_busy_s"] == pytest.approx(20 / 5)
    assert (found["prefill_tokens_per_wall_s"], found["decode_tokens_per_wall_s"]) == (16.0, 2.0)
    assert (found["mixed_busy_s"], found["busy_share"]) == (3.0, 0.6)


def test_m35_a_percentile_that_the_count_cannot_support_is_absent_with_the_reason() -> None:
    """p99 of 10 requests."""
    requests = [request_record(n) for n in range(10)]
    found = metrics_of(requests, [step_record()])
    assert found["ttft_p50_s"] == pytest.approx(0.3)
    assert found["ttft_p90_s"] is found["ttft_p95_s"] is found["ttft_p99_s"] is None
    warnings = case_metrics(requests, [step_record()], slo=NO_SLO, wall_s=10.0, block_size=BLOCK)[1]
    numbers = next(w.numbers for w in warnings if "ttft" in w.numbers.get("of", ""))
    assert (numbers["count"], numbers["missing"]) == (10, {"p90": 29, "p95": 59, "p99": 299})
    assert "needs 299" in text("too_few_samples", numbers)


@pytest.mark.parametrize("percent", [50, 90, 95, 99])
def test_a_percentile_is_given_from_exactly_the_count_that_supports_it(percent: int) -> None:
    needed = values_needed(percent)
    assert (percent / 100) ** needed <= 0.05 < (percent / 100) ** (needed - 1)
    for count in (needed - 1, needed):
        found = metrics_of([request_record(n) for n in range(count)], [step_record()])
        assert (found[f"ttft_p{percent}_s"] is not None) == (count == needed)


def test_m36_offload_that_was_never_used_is_said() -> None:
    """Offload on, working set fits in device memory."""
    requests = [request_record()]
    assert "offload_never_used" in warnings_of(requests, [step_record()], offload="host")
    assert "offload_never_used" not in warnings_of(requests, [step_record(host_promotions=1)], offload="host")
    assert "offload_never_used" not in warnings_of(requests, [step_record()], offload="none")


def test_m39_a_missing_metric_does_not_meet_an_objective() -> None:
    """Goodput with a missing metric: infeasible, not "met"; without any objective there is no goodput."""
    good, single = request_record(0), request_record(1, tpot_s=None, itl_s=[], output_tokens=1)
    unknown = request_record(2, tpot_s=math.nan)
    found = metrics_of([good, single, unknown, rejected_record(3)], [step_record()], slo=SloSettings(tpot_s=1.0))
    assert (found["goodput_per_s"], found["slo_met_share"]) == (0.1, 0.25)
    assert metrics_of([good], [step_record()])["goodput_per_s"] is None


def test_m39_an_objective_on_what_no_request_has_is_infeasible_and_has_no_goodput() -> None:
    """Single tokens have no TPOT: an objective on it is neither met nor missed."""
    singles = [request_record(n, tpot_s=None, itl_s=[], output_tokens=1) for n in range(5)]
    slo = SloSettings(tpot_s=1.0, ttft_s=1.0)
    found, warnings = case_metrics(singles, [step_record()], slo=slo, wall_s=10.0, block_size=BLOCK)
    assert goodput(singles, slo).verdict == "infeasible"
    assert [found[n] for n in ("goodput_per_s", "slo_met_share", "slo_met_low", "slo_met_high")] == [None] * 4
    numbers = next(w.numbers for w in warnings if w.name == "slo_value_missing")
    assert numbers == {"missing": {"tpot_s": 5}, "finished": 5}


@pytest.mark.parametrize(("met", "count"), [(0, 10), (10, 10), (7, 10), (1, 2), (950, 1000), (0, 1), (1, 1)])
def test_the_interval_of_a_share_is_wilsons(met: int, count: int) -> None:
    expected = stats.binomtest(met, count).proportion_ci(method="wilson")
    assert wilson(met, count) == pytest.approx((expected.low, expected.high), abs=1e-7)


@pytest.mark.parametrize(
    ("met", "count", "verdict"),
    [(20, 20, "unresolved"), (100, 100, "met"), (95, 100, "unresolved"), (80, 100, "missed"), (0, 3, "missed"),
     (9, 10, "unresolved"), (970, 1000, "met"), (930, 1000, "missed")],
)  # fmt: skip
def test_too_few_requests_leave_the_objectives_unresolved(met: int, count: int, verdict: str) -> None:
    """At 95 % wanted: twenty of twenty are not enough to say so (the interval reaches down to 84 %)."""
    requests = [request_record(n, ttft_s=0.1 if n < met else 9.0) for n in range(count)]
    found = goodput(requests, SloSettings(ttft_s=1.0))
    assert (found.met, found.verdict) == (met, verdict)


def test_without_an_objective_there_is_no_verdict() -> None:
    assert goodput([request_record()], NO_SLO).verdict is None
    assert goodput([], SloSettings(ttft_s=1.0)).verdict is None


def test_rejected_requests_count_against_goodput() -> None:
    requests = [*(request_record(n) for n in range(50)), *(rejected_record(n) for n in range(50, 100))]
    found = goodput(requests, SloSettings(e2e_s=100.0))
    assert (found.requests, found.met, found.verdict) == (100, 50, "missed")


def _load(active: list[int]) -> list[StepRecord]:
    """One step a second with so many sequences."""
    return [step_record(n, t_s=float(n), duration_s=1.0, active_sequences=a) for n, a in enumerate(active)]


def test_the_steady_window_lies_between_ramp_up_and_drain() -> None:
    """Ramp-up over three seconds, ten seconds of load, and a drain after the last request got in at 13 s."""
    steps = _load([1, 4, 7, *[10] * 10, 8, 5, 2])
    requests = [
        request_record(n, arrival_s=n - 0.5, queue_time_s=0.5, ttft_s=1.0, e2e_s=3.0, itl_s=[1.0, 1.0], output_tokens=3)
        for n in range(14)
    ]
    found = metrics_of(requests, steps, wall_s=16.0)
    assert found["steady_s"] == 10.0
    assert found["steady_requests"] == 11
    tokens = sum(3 < r.arrival_s + 1.0 + gap <= 13 for r in requests for gap in (0.0, 1.0, 2.0))
    assert found["steady_output_tokens_per_s"] == pytest.approx(tokens / 10)
    assert (found["steady_ttft_p50_s"], found["steady_ttft_p90_s"]) == (1.0, None)
    assert found["steady_e2e_mean_s"] == pytest.approx(3.0)


@pytest.mark.parametrize("count", [1, 20])
def test_a_load_that_comes_all_at_once_and_fits_at_once_has_no_steady_window(count: int) -> None:
    requests = [request_record(n, arrival_s=0.0, queue_time_s=0.0) for n in range(count)]
    found = metrics_of(requests, _load([count] * 5))
    assert {found[name] for name in found if name.startswith("steady_")} == {None}


@settings(max_examples=60, deadline=None)
@given(served(), seconds)
def test_tokens_of_the_steady_window_agree_with_counting_every_one(
    case: tuple[list[RequestRecord], list[StepRecord]], wall_s: float
) -> None:
    requests, steps = case
    window = steady_window(requests, steps)
    if window is not None:
        times = [
            (r.arrival_s + (r.ttft_s or 0)) + sum(r.itl_s[:n])
            for r in requests
            if r.ttft_s is not None
            for n in range(r.output_tokens)
        ]
        near = sum(abs(t - edge) < 1e-6 for t in times for edge in (window.begin_s, window.end_s))
        assert abs(window.output_tokens - sum(window.begin_s < t <= window.end_s for t in times)) <= near


def test_only_gaps_in_which_someone_waited_are_the_clients() -> None:
    """Steps at 0–1, 3–4 and 9–10 s; one request in the system until 4 s, the next one arrives at 8 s."""
    steps = [step_record(n, t_s=t, duration_s=1.0) for n, t in enumerate((0.0, 3.0, 9.0))]
    requests = [request_record(0, arrival_s=0.0, e2e_s=4.0), request_record(1, arrival_s=8.0, e2e_s=2.0)]
    assert client_seconds(requests, steps) == 2.0
    assert metrics_of(requests, steps, wall_s=10.0)["client_share"] == 0.2
    assert warnings_of(requests, steps)["client_bound"]["share"] == 0.2
    assert client_seconds([rejected_record()], steps) == 0.0
    assert "client_bound" not in warnings_of(requests, steps[:1])


def test_goodput_needs_every_objective() -> None:
    requests = [request_record(0), request_record(1, ttft_s=2.0), request_record(2, e2e_s=9.0)]
    found = metrics_of(requests, [step_record()], slo=SloSettings(ttft_s=0.3, e2e_s=0.6))
    assert found["goodput_per_s"] == pytest.approx(1 / 10)


def test_rejected_and_failed_requests_are_counted_and_in_no_latency() -> None:
    failed = request_record(2, finish_reason="error", ttft_s=99.0, e2e_s=None)
    requests = [request_record(0), rejected_record(1), failed]
    found = metrics_of(requests, [step_record()])
    assert (found["requests_total"], found["requests_finished"]) == (3, 1)
    assert (found["requests_rejected"], found["requests_failed"]) == (1, 1)
    assert found["ttft_mean_s"] == pytest.approx(0.3)
    assert {"requests_rejected", "requests_failed"} <= warnings_of(requests, [step_record()]).keys()


def test_heavy_preemption_is_said_with_its_numbers() -> None:
    requests = [request_record(recomputed_tokens=30)]
    steps = [step_record(prefill_tokens=90, decode_tokens=10, preemptions=3)]
    assert warnings_of(requests, steps)["preempted_heavily"]["recomputed_share"] == pytest.approx(0.3)
    assert "preempted_heavily" not in warnings_of([request_record(recomputed_tokens=5)], steps)


def test_a_warning_is_shown_whatever_its_numbers() -> None:
    for name in [*TEXTS, "of_a_newer_kvbench"]:
        assert text(name, {})
        assert text(name, {"x": None})


def test_every_warning_is_documented() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "measurement.md").read_text(encoding="utf-8")
    assert [name for name in TEXTS if f"`{name}`" not in page] == []
