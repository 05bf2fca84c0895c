"""Stored runs: sessions against sessions, and the trend since a pinned reference."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from kvbench.analysis.gate.sessions import StoredSession, judge_sessions, trend
from kvbench.analysis.gate.types import Reason, Verdict
from kvbench.errors import ExitCode

_KEY = ("c", "decode_s")


def _session(
    rng: np.random.Generator, effect: float = 0.0, *, between: float = 0.001, name: str = "s"
) -> StoredSession:
    """Ten processes with 0.5 % noise around a level of the day's own."""
    level = np.log1p(effect) + rng.normal(0, between)
    return StoredSession(name, {_KEY: np.exp(level + rng.normal(0, 0.005, 10))})


def _sessions(seed: int, count: int, effect: float = 0.0, **facts: float) -> list[StoredSession]:
    rng = np.random.default_rng(seed)
    return [_session(rng, effect, **facts) for _ in range(count)]


def test_below_three_stored_sessions_a_fail_is_advice():
    found = judge_sessions(_sessions(1, 2), _sessions(2, 1, 0.2))
    assert (found.cases[0].verdict, found.advisory) == (Verdict.FAIL, True)
    assert Reason.ADVISORY in found.cases[0].reasons
    assert found.exit_code() == ExitCode.PARTIAL


def test_from_three_stored_sessions_on_a_fail_counts():
    found = judge_sessions(_sessions(1, 5), _sessions(2, 1, 0.2))
    assert (found.cases[0].verdict, found.advisory, found.exit_code()) == (Verdict.FAIL, False, ExitCode.NO)


def test_the_test_is_on_the_means_of_the_sessions():
    old, new = _sessions(3, 5), _sessions(4, 2, 0.03)
    found = judge_sessions(old, new).cases[0]
    means = [[np.log(session.values[_KEY]).mean() for session in side] for side in (new, old)]
    expected = stats.ttest_ind(*means, alternative="greater")
    assert found.p_worse == pytest.approx(expected.pvalue)
    assert found.effect == pytest.approx(np.expm1(np.mean(means[0]) - np.mean(means[1])))


def test_days_that_differ_more_than_processes_do_are_not_mistaken_for_a_regression():
    """Days 3 % apart, processes 0.5 %: a test on the processes calls most of these unchanged sessions slower or faster,
    the test on session means at most one in a hundred (99.9 % bound)."""
    failed = pooled = 0
    for seed in range(300):
        old, new = _sessions(seed, 4, between=0.03), _sessions(seed + 1000, 1, between=0.03)
        failed += judge_sessions(old, new).cases[0].verdict is Verdict.FAIL
        pooled += judge_sessions(old[:1], new).cases[0].verdict in (Verdict.FAIL, Verdict.IMPROVED)
    assert failed <= stats.binom.isf(0.001, 300, 0.01)
    assert pooled > 100


def test_a_throughput_is_worse_when_it_falls():
    def stored(value: float) -> StoredSession:
        noise = np.exp(np.random.default_rng(int(value)).normal(0, 0.001, 10))
        return StoredSession("s", {("c", "tokens_per_s"): value * noise}, {("c", "tokens_per_s"): "lower"})

    found = judge_sessions([stored(100), stored(100.1), stored(99.9), stored(100.05)], [stored(80)]).cases[0]
    assert (found.verdict, found.effect) == (Verdict.FAIL, pytest.approx(0.25, abs=0.01))


def test_m61_a_case_that_a_side_lacks_or_with_nan_is_invalid():
    """NaN, no samples, a case missing on one side: stored runs."""
    good = _sessions(1, 3)
    for values in ({}, {_KEY: np.zeros(0)}, {_KEY: np.array([1.0, np.nan])}, {_KEY: np.array([0.0, 1.0])}):
        for how in ("pass", "fail", "neutral"):
            assert judge_sessions(good, [StoredSession("bad", values)]).exit_code(how) == ExitCode.BAD_DATA
            assert judge_sessions([StoredSession("bad", values)], good).exit_code(how) == ExitCode.BAD_DATA
    assert judge_sessions([], []).exit_code("pass") == ExitCode.BAD_DATA


def test_one_process_a_side_decides_nothing():
    one = StoredSession("s", {_KEY: np.array([1.0])})
    other = StoredSession("s", {_KEY: np.array([2.0])})
    assert judge_sessions([one], [other]).cases[0].verdict is Verdict.INCONCLUSIVE


def test_a_slow_creep_is_found_against_the_pinned_reference():
    """0.6 % a week is below every margin from week to week."""
    rng = np.random.default_rng(8)
    reference = [_session(rng, name=f"pinned-{at}") for at in range(5)]
    weeks = [_session(rng, 1.006**week - 1, name=f"week-{week}") for week in range(12)]
    found = trend(reference, weeks)
    assert [name for name, _ in found] == [week.name for week in weeks]
    verdicts = [suite.cases[0].verdict for _, suite in found]
    assert Verdict.FAIL not in verdicts[:3]
    assert verdicts[-3:] == [Verdict.FAIL] * 3
