"""Arrivals with a burstiness, closed loops, think times, zipf lengths, examples, documents and tenants."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from kvbench.spec.workload import Lengths, WorkloadSettings
from kvbench.workload.arrivals import constant, gamma, poisson
from kvbench.workload.draws import exponentials, gammas
from kvbench.workload.lengths import draw_lengths
from tests.workload.helpers import FIXTURES, from_trace, naive_hit_tokens, prompt_ids, synthetic


@pytest.mark.parametrize("shape", [0.05, 0.25, 0.9, 1.0, 2.5, 40.0])
def test_gamma_numbers_are_gamma(shape: float) -> None:
    stats = pytest.importorskip("scipy.stats")
    drawn = gammas(3, shape, 40_000)
    assert stats.kstest(drawn, stats.gamma(shape, scale=1 / shape).cdf).pvalue > 1e-4


def test_exponential_numbers_are_exponential() -> None:
    stats = pytest.importorskip("scipy.stats")
    assert stats.kstest(exponentials(3, "think", 40_000), "expon").pvalue > 1e-4


@pytest.mark.parametrize("burstiness", [0.3, 1.0, 3.0])
def test_gamma_arrivals_have_their_rate_and_burstiness(burstiness: float) -> None:
    gaps = np.diff(gamma(200_000, 8.0, burstiness, seed=5)) / 1e9
    assert gaps.mean() == pytest.approx(1 / 8, rel=0.03)
    assert gaps.std() / gaps.mean() == pytest.approx(burstiness, rel=0.03)


def test_the_first_gamma_arrivals_are_those_of_a_longer_workload() -> None:
    assert gamma(100, 2.0, 1.7, seed=1).tolist() == gamma(5000, 2.0, 1.7, seed=1)[:100].tolist()


def test_constant_arrivals_are_a_metronome() -> None:
    assert constant(4, 8.0).tolist() == [0, 125_000_000, 250_000_000, 375_000_000]
    workload = synthetic(requests=50, arrival={"kind": "constant", "rate": 3.0})
    assert [r.arrival_s for r in workload.requests] == pytest.approx([n / 3 for n in range(50)], abs=1e-9)


def test_poisson_arrivals_did_not_move() -> None:
    """The formula of an earlier version, written out: digests of old workloads stay."""
    from kvbench.workload.draws import uniforms

    gaps = np.rint(-np.log1p(-uniforms(9, "arrival", 1000)) * 1e9 / 4.0)
    gaps[0] = 0
    assert poisson(1000, 4.0, 9).tolist() == np.cumsum(gaps).astype(np.int64).tolist()


def test_zipf_lengths_follow_their_law() -> None:
    settings = Lengths(kind="zipf", low=10, high=59, exponent=1.3)
    tokens = draw_lengths(settings, 1, "input", 100_000).tokens
    weights = np.arange(1, 51) ** -1.3
    expected = weights / weights.sum() * 100_000
    counts = np.bincount(tokens, minlength=60)[10:]
    assert counts.sum() == 100_000
    assert ((counts - expected) ** 2 / expected).sum() < 49 + 6 * math.sqrt(2 * 49)


def test_sessions_think_as_long_as_asked_on_average() -> None:
    turns = {"turns": 4, "think_time_s": 2.0}
    steady = synthetic(requests=400, sessions=turns)
    assert {r.think_time_s for r in steady.requests if r.after is not None} == {2.0}
    spread = synthetic(requests=20_000, sessions={**turns, "think": "exponential"})
    times = [r.think_time_s for r in spread.requests if r.after is not None]
    assert np.mean(times) == pytest.approx(2.0, rel=0.04)
    assert np.std(times) == pytest.approx(2.0, rel=0.06)


def test_a_closed_loop_has_clients_and_no_times() -> None:
    arrival = {"kind": "closed-loop", "clients": 3, "think_time_s": 0.5}
    workload = synthetic(requests=12, arrival=arrival, sessions={"turns": 2})
    assert workload.clients == 3
    assert {r.arrival_s for r in workload.requests} == {0.0}
    assert [r.think_time_s for r in workload.requests] == [0.5, 0.0] * 6
    assert workload.digest != synthetic(requests=12, arrival={**arrival, "clients": 4}, sessions={"turns": 2}).digest
    assert synthetic(requests=12).clients is None


def test_a_trace_can_be_played_by_clients() -> None:
    workload = from_trace(
        FIXTURES / "azure2023.csv", arrival={"kind": "closed-loop", "clients": 2, "think_time_s": 1.0}
    )
    assert workload.clients == 2
    assert {r.arrival_s for r in workload.requests} == {0.0}
    assert {r.think_time_s for r in workload.requests} == {1.0}


def test_few_shot_examples_nest_within_a_group() -> None:
    workload = synthetic(
        requests=300, input_tokens=5, prefix={"groups": 2, "tokens": 20, "shots": 3, "shot_tokens": 10}
    )
    lengths = Counter(r.input_tokens for r in workload.requests)
    assert set(lengths) == {25, 35, 45, 55}
    assert min(lengths.values()) > 50
    by_stream: dict[int, list[list[int]]] = {}
    for request in workload.requests:
        by_stream.setdefault(request.prompt[0].stream, []).append(prompt_ids(workload, request)[:-5])
    for fronts in by_stream.values():
        longest = max(fronts, key=len)
        assert all(front == longest[: len(front)] for front in fronts)


def test_tenants_share_nothing_with_each_other() -> None:
    shared: dict[str, Any] = {"requests": 200, "input_tokens": 4, "prefix": {"groups": 1, "tokens": 32}}
    workload = synthetic(**{**shared, "prefix": {"groups": 1, "tokens": 32, "tenants": 5}})
    assert set(Counter(r.salt for r in workload.requests)) == {f"tenant-{n}" for n in range(5)}
    together, apart = naive_hit_tokens(synthetic(**shared), 16, 50_000), naive_hit_tokens(workload, 16, 50_000)
    assert together == 199 * 32
    assert apart == 195 * 32


def test_documents_are_quoted_by_popularity_in_an_order_of_their_own() -> None:
    workload = synthetic(
        requests=2000, input_tokens=8, documents={"corpus": 30, "per_request": 3, "tokens": 16, "zipf": 1.0}
    )
    counts: Counter[int] = Counter()
    for request in workload.requests:
        quoted = [segment.stream for segment in request.prompt[:-1]]
        assert len(set(quoted)) == len(quoted) <= 3
        counts.update(quoted)
    (first, most), (_, second) = counts.most_common(2)
    assert len(counts) == 30
    assert 1.4 < most / second < 2.4, "rank 1 is about twice as popular as rank 2"
    places = {
        [s.stream for s in r.prompt].index(first) for r in workload.requests if first in [s.stream for s in r.prompt]
    }
    assert places == {0, 1, 2}


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"arrival": {"kind": "gamma"}}, "rate"),
        ({"arrival": {"kind": "constant"}}, "rate"),
        ({"arrival": {"kind": "closed-loop"}}, "clients"),
        ({"input_tokens": {"kind": "zipf", "low": 1, "high": 9}}, "exponent"),
        ({"input_tokens": {"kind": "zipf", "low": 1, "high": 2**30, "exponent": 1.0}}, "span"),
        ({"arrival": {"kind": "gamma", "rate": 1.0, "burstiness": 0.0}}, "burstiness"),
    ],
)
def test_incomplete_traffic_is_refused_with_what_is_missing(settings: dict[str, Any], word: str) -> None:
    with pytest.raises(ValidationError, match=word):
        WorkloadSettings.model_validate(settings)
