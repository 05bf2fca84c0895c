"""Warm-up ends when halves of the trailing window agree, autocorrelation counted."""

from __future__ import annotations

import numpy as np
import pytest

from kvbench.measure.stationary import WINDOW, is_stationary, lag1, standard_error


def test_lag1_of_an_alternating_series_is_minus_one_but_for_its_ends() -> None:
    series = np.tile([1.0, -1.0], 50)
    assert lag1(series) == pytest.approx(-99 / 100)


def test_lag1_agrees_with_the_correlation_coefficient_on_a_long_ar1_series() -> None:
    rng = np.random.default_rng(0)
    series = [0.0]
    for shock in rng.normal(size=20_000):
        series.append(0.6 * series[-1] + shock)
    assert lag1(series) == pytest.approx(np.corrcoef(series[:-1], series[1:])[0, 1], abs=1e-3)
    assert lag1(series) == pytest.approx(0.6, abs=0.02)


@pytest.mark.parametrize("series", [[], [1.0], [1.0, 1.0, 1.0]])
def test_lag1_is_zero_where_there_is_nothing_to_correlate(series: list[float]) -> None:
    assert lag1(series) == 0.0


def test_standard_error_covers_the_true_spread_of_means_of_a_correlated_series() -> None:
    """The naive error is too small by √((1+ρ)/(1−ρ)) = 2 at ρ = 0.6; ours is right within a fifth."""
    rng = np.random.default_rng(1)
    means, errors = [], []
    for _ in range(400):
        series = [0.0]
        for shock in rng.normal(size=400):
            series.append(0.6 * series[-1] + shock)
        means.append(np.mean(series))
        errors.append(standard_error(np.asarray(series)))
    assert np.median(errors) == pytest.approx(np.std(means), rel=0.2)


def test_a_series_that_still_falls_is_not_stationary() -> None:
    assert not is_stationary(np.linspace(2.0, 1.0, 100))


def test_a_flat_series_with_noise_is_stationary_nearly_always() -> None:
    rng = np.random.default_rng(2)
    answers = [is_stationary(1.0 + 0.01 * rng.normal(size=WINDOW)) for _ in range(500)]
    assert np.mean(answers) > 0.9


def test_too_few_values_are_not_stationary() -> None:
    assert not is_stationary([1.0] * (WINDOW - 1))
