"""The regression of the fitted cost model, on rows with known coefficients."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import nnls

from kvbench.analysis.conformal import enough, half_width
from kvbench.analysis.nonnegative import Rows, bootstrap, fit, resampled

TRUE = np.array([2e-3, 5e-5, 0.0, 3e-7])


def rows_of(rng: np.random.Generator, count: int = 200, noise: float = 0.0) -> Rows:
    terms = np.stack([np.ones(count), *(rng.integers(0, high, count) for high in (64, 500, 9000))], axis=1)
    return Rows(terms, terms @ TRUE * np.exp(noise * rng.standard_normal(count)))


def test_coefficients_come_back_exactly_without_noise() -> None:
    rng = np.random.default_rng(0)
    found = fit([rows_of(rng) for _ in range(5)])
    assert found.coefficients == pytest.approx(TRUE, rel=1e-9, abs=1e-15)
    assert max(np.abs(r).max() for r in found.residuals) < 1e-9


def test_one_in_ten_steps_ten_times_as_long_moves_coefficients_little_beside_each_other() -> None:
    rng = np.random.default_rng(1)
    samples = []
    for _ in range(6):
        clean = rows_of(rng)
        late = np.where((rng.random(len(clean.seconds)) < 0.2) & (clean.terms[:, 1] > 32), 10.0, 1.0)
        samples.append(Rows(clean.terms, clean.seconds * late))
    found = fit(samples).coefficients
    assert found[[1, 3]] / found[0] == pytest.approx(TRUE[[1, 3]] / TRUE[0], rel=0.05)
    plain = nnls(np.concatenate([s.terms for s in samples]), np.concatenate([s.seconds for s in samples]))[0]
    assert plain[0] < TRUE[0] / 2  # what the weights are for


def test_totals_are_met_where_steps_are_skewed() -> None:
    rng = np.random.default_rng(2)
    samples = [rows_of(rng, noise=0.5) for _ in range(9)]
    found = fit(samples)
    ratios = [s.seconds.sum() / (s.terms @ found.coefficients).sum() for s in samples]
    assert np.median(ratios) == pytest.approx(1.0, rel=1e-12)


def test_no_coefficient_is_negative_whatever_the_rows() -> None:
    rng = np.random.default_rng(3)
    for _ in range(20):
        terms = rng.random((60, 5)) * 10 ** rng.integers(0, 8, 5)
        seconds = np.abs(terms @ rng.standard_normal(5)) + 1e-6
        found = fit([Rows(terms[:30], seconds[:30]), Rows(terms[30:], seconds[30:])])
        assert (found.coefficients >= 0).all()
        assert np.isfinite(found.coefficients).all()


def test_a_sample_that_is_left_out_decides_nothing() -> None:
    rng = np.random.default_rng(4)
    good = [rows_of(rng) for _ in range(4)]
    slow = Rows(good[0].terms, good[0].seconds * 3)
    found = fit([*good, slow])
    assert resampled(found, np.array([1.0, 1.0, 1.0, 1.0, 0.0])) == pytest.approx(TRUE, rel=1e-6, abs=1e-12)


def test_bootstrap_intervals_hold_the_truth_about_as_often_as_they_say() -> None:
    """Every process is slower or faster as a whole by 5 %: steps of one process err together."""
    held = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        samples = []
        for _ in range(16):
            clean = rows_of(rng, count=60)
            samples.append(Rows(clean.terms, clean.seconds * np.exp(0.05 * rng.standard_normal())))
        low, high = np.quantile(bootstrap(fit(samples), 60)[:, 0], [0.05, 0.95])
        held += bool(low <= TRUE[0] <= high)
    assert 42 <= held <= 60


def test_conformal_intervals_cover_whatever_the_shape_of_the_errors() -> None:
    rng = np.random.default_rng(5)
    for draw in (rng.standard_normal, lambda size: rng.standard_t(2, size), lambda size: rng.exponential(1, size)):
        covered = 0
        for _ in range(2000):
            errors = draw(20)
            half = half_width(errors[:19].tolist())
            assert half is not None
            covered += abs(errors[19]) <= half
        assert covered / 2000 == pytest.approx(0.9, abs=0.03)


def test_of_nineteen_errors_the_second_largest_is_the_half_width() -> None:
    errors = [(-1) ** n * n / 100 for n in range(1, 20)]
    assert half_width(errors) == pytest.approx(0.18)
    assert half_width(errors[:9]) == pytest.approx(0.09)
    assert enough() == 9
    assert half_width([]) is None
    assert half_width(errors, groups=9) == pytest.approx(0.18)


def test_many_errors_of_few_cases_are_as_few() -> None:
    errors = [0.1, -0.1, 0.1] * 10
    assert half_width(errors, groups=3) == half_width(errors[:3])


def test_few_errors_give_students_interval() -> None:
    assert half_width([0.1]) == pytest.approx(6.3138 * 0.1 * 2**0.5, rel=1e-4)  # t(0.95, 1)
    assert half_width([0.1, -0.1, 0.1]) == pytest.approx(2.3534 * 0.1 * (4 / 3) ** 0.5, rel=1e-4)  # t(0.95, 3)
