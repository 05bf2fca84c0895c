"""The interval covers the median of correlated series; sampling stops when it is narrow enough."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from kvbench.measure.bimodal import two_modes
from kvbench.measure.precision import (
    MAX_CALLS,
    MIN_CALLS,
    StoppingRule,
    correlation_time,
    half_width,
    median_interval,
)

Floats = NDArray[np.float64]


def _ar1(rng: np.random.Generator, rho: float, count: int) -> Floats:
    """Around 100, standard deviation of the shocks 1."""
    series = np.zeros(count + 50)
    for at, shock in enumerate(rng.normal(size=count + 50)):
        series[at] = rho * series[at - 1] + shock
    return 100 + series[50:]


def test_without_correlation_the_interval_is_the_textbooks_one() -> None:
    """The binomial interval of order statistics by scipy, within one rank at either end."""
    x = np.random.default_rng(0).permutation(np.arange(400.0))
    low, high = median_interval(x)
    below = stats.binom(400, 0.5).ppf([0.025, 0.975])
    assert abs(low - (below[0] - 1)) <= 8
    assert abs(high - below[1]) <= 8


@pytest.mark.parametrize("rho", [0.0, 0.4, 0.8])
def test_the_interval_covers_the_median_of_a_correlated_series_where_the_naive_one_does_not(rho: float) -> None:
    rng = np.random.default_rng(1)
    covered = naive = 0
    for _ in range(400):
        x = _ar1(rng, rho, 300)
        low, high = median_interval(x)
        covered += low <= 100 <= high
        below = stats.binom(300, 0.5).ppf([0.025, 0.975]).astype(int)
        ordered = np.sort(x)
        naive += bool(ordered[below[0] - 1] <= 100 <= ordered[below[1]])
    assert covered / 400 >= 0.90
    assert (naive / 400 < 0.90) == (rho > 0)


def test_stopping_on_precision_keeps_the_error_rate() -> None:
    """At a nominal 5 %, looking again and again until the interval is narrow misses the truth in 8 % at most."""
    rng = np.random.default_rng(2)
    rule = StoppingRule(precision=0.002, min_time_s=0.0, max_time_s=1e9)
    missed = 0
    for _ in range(300):
        x = _ar1(rng, 0.4, 4000)
        count = MIN_CALLS
        while count < len(x) and not rule.is_over(x[:count], 0.0):
            count = rule.next_look(count)
        low, high = median_interval(x[:count])
        missed += not low <= 100 <= high
    assert missed / 300 <= 0.08


def test_correlation_time_of_an_ar1_series_is_that_of_the_formula() -> None:
    """(1 + ρ) / (1 − ρ) = 4 at ρ = 0.6; 1 for an independent series, and never less."""
    rng = np.random.default_rng(3)
    assert np.median([correlation_time(_ar1(rng, 0.6, 4000)) for _ in range(20)]) == pytest.approx(4.0, rel=0.15)
    assert np.median([correlation_time(rng.normal(size=4000)) for _ in range(20)]) == pytest.approx(1.0, abs=0.15)
    assert correlation_time(np.tile([1.0, -1.0], 50)) == 1.0
    assert correlation_time(np.ones(50)) == 1.0


def test_one_enormous_value_moves_neither_the_median_nor_its_interval_much() -> None:
    x = 1 + 0.001 * np.random.default_rng(4).normal(size=200)
    with_interrupt = x.copy()
    with_interrupt[17] = 1000.0
    assert half_width(with_interrupt) == pytest.approx(half_width(x), rel=0.3)


@pytest.mark.parametrize("values", [[], [1.0], [1.0, 2.0], [0.0] * 50])
def test_too_little_to_know_anything_is_infinitely_wide(values: list[float]) -> None:
    if values:
        assert half_width(values) == np.inf
    else:
        assert median_interval(values) == (-np.inf, np.inf)


def test_the_rule_stops_between_its_times() -> None:
    rule = StoppingRule(precision=0.01, min_time_s=1.0, max_time_s=2.0)
    flat, wild = [1.0] * 100, [1.0, 2.0] * 50
    assert not rule.is_over(flat, 0.5)
    assert rule.is_over(flat, 1.0)
    assert not rule.is_over(wild, 1.5)
    assert rule.is_over(wild, 2.0)
    assert not rule.is_over(flat[: MIN_CALLS - 1], 5.0)
    assert rule.is_over(np.arange(float(MAX_CALLS)), 0.0)


@pytest.mark.parametrize("name", ["normal", "exponential", "lognormal", "uniform", "ar1", "outliers"])
def test_one_group_of_timings_is_not_taken_for_two(name: str) -> None:
    rng = np.random.default_rng(5)
    draws = {
        "normal": lambda: rng.normal(10, 1, 200),
        "exponential": lambda: 1 + rng.exponential(size=200),
        "lognormal": lambda: rng.lognormal(0, 0.5, 200),
        "uniform": lambda: rng.uniform(1, 2, 200),
        "ar1": lambda: _ar1(rng, 0.6, 200),
        "outliers": lambda: np.concatenate([rng.normal(1, 0.01, 195), rng.uniform(5, 50, 5)]),
    }
    assert sum(two_modes(draws[name]()) is not None for _ in range(200)) <= 2


def test_two_clocks_are_two_groups_with_their_means_and_shares() -> None:
    rng = np.random.default_rng(6)
    x = np.where(np.arange(200) % 5 < 2, 1.10, 1.00) + rng.normal(0, 0.005, 200)
    found = two_modes(x)
    assert found is not None
    assert found == pytest.approx((1.0, 1.1, 0.4), abs=0.02)
    assert two_modes(x[:10]) is None
    assert two_modes([float("nan")] * 50) is None
