from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from kvbench.errors import UsageError
from kvbench.spec.workload import Lengths, SharedPrefixes
from kvbench.workload.arrivals import all_at_once, poisson, scaled
from kvbench.workload.draws import normals, uniforms
from kvbench.workload.lengths import MAX_TOKENS, draw_lengths, pick
from kvbench.workload.prefixes import draw_groups


def _draw(count: int = 20_000, seed: int = 1, **settings: Any) -> Any:
    return draw_lengths(Lengths.model_validate(settings), seed, "input", count)


def test_constant_is_constant() -> None:
    assert set(_draw(kind="constant", value=17).tokens.tolist()) == {17}


def test_uniform_reaches_both_ends_equally() -> None:
    counts = np.bincount(_draw(kind="uniform", low=3, high=7).tokens)
    assert counts[:3].sum() == 0
    assert len(counts) == 8
    assert np.all(np.abs(counts[3:] - 4000) < 5 * math.sqrt(4000))


def test_lognormal_has_its_median_and_sigma() -> None:
    logs = np.log(_draw(kind="lognormal", median=1000, sigma=0.7).tokens)
    assert abs(np.median(logs) - math.log(1000)) < 0.03
    assert abs(logs.std() - 0.7) < 0.02


def test_normals_are_normal() -> None:
    scipy_stats = pytest.importorskip("scipy.stats")
    assert scipy_stats.kstest(normals(5, "input", 50_000), "norm").pvalue > 1e-4


def test_empirical_draws_by_weight_and_never_what_weighs_nothing() -> None:
    tokens = _draw(kind="empirical", values=[5, 6, 7, 8], weights=[1, 0, 3, 0]).tokens
    assert set(tokens.tolist()) == {5, 7}
    assert abs((tokens == 7).mean() - 0.75) < 0.02


def test_pick_takes_the_last_possible_value_at_the_very_end() -> None:
    assert pick(np.array([1.0, 2.0, 0.0]), np.array([0.0, 1 - 2**-53])).tolist() == [0, 1]


def test_clipped_draws_are_counted_on_both_sides() -> None:
    drawn = _draw(kind="uniform", low=1, high=100, min=11, max=90)
    free = _draw(kind="uniform", low=1, high=100).tokens
    assert drawn.raised == int((free < 11).sum()) > 0
    assert drawn.lowered == int((free > 90).sum()) > 0
    assert np.array_equal(drawn.tokens, np.clip(free, 11, 90))


def test_draws_below_one_token_become_one_and_are_counted() -> None:
    drawn = _draw(kind="lognormal", median=0.01, sigma=0.0, count=10)
    assert drawn.tokens.tolist() == [1] * 10
    assert drawn.raised == 10


def test_lengths_beyond_any_model_are_clipped_and_counted() -> None:
    drawn = _draw(kind="lognormal", median=MAX_TOKENS, sigma=5)
    assert drawn.tokens.max() == MAX_TOKENS
    assert abs(drawn.lowered - 10_000) < 5 * math.sqrt(5000)


def test_draw_number_i_does_not_depend_on_how_many_are_drawn() -> None:
    few = _draw(count=10, kind="lognormal", median=50, sigma=1).tokens
    many = _draw(count=1000, kind="lognormal", median=50, sigma=1).tokens
    assert np.array_equal(few, many[:10])


def test_seeds_and_purposes_are_independent() -> None:
    one, two = uniforms(1, "input", 10_000), uniforms(2, "input", 10_000)
    other = uniforms(1, "output", 10_000)
    assert abs(np.corrcoef(one, two)[0, 1]) < 0.05
    assert abs(np.corrcoef(one, other)[0, 1]) < 0.05
    assert 0 <= one.min() < one.max() < 1


def test_poisson_gaps_are_exponential_with_the_rate() -> None:
    scipy_stats = pytest.importorskip("scipy.stats")
    gaps = np.diff(poisson(20_000, rate=4.0, seed=3)) / 1e9
    assert scipy_stats.kstest(gaps, "expon", args=(0, 0.25)).pvalue > 1e-4


def test_poisson_starts_at_zero_and_never_runs_backwards() -> None:
    times = poisson(1000, rate=1e6, seed=0)
    assert times[0] == 0
    assert np.all(np.diff(times) >= 0)
    assert poisson(0, 1.0, 0).tolist() == []


def test_hopeless_rates_and_scales_are_refused() -> None:
    with pytest.raises(UsageError, match="centuries"):
        poisson(10, rate=1e-300, seed=0)
    with pytest.raises(UsageError, match="centuries"):
        scaled(np.array([0, 10**12]), 1e300)
    with pytest.raises(UsageError, match="centuries"):
        scaled(np.array([0, 10**12]), math.inf)


def test_all_at_once_is_zero() -> None:
    assert all_at_once(3).tolist() == [0, 0, 0]


def test_groups_follow_zipf() -> None:
    groups = draw_groups(SharedPrefixes(groups=4, zipf=1.0), 0, 50_000)
    assert groups is not None
    share = np.bincount(groups, minlength=4) / 50_000
    harmonic = sum(1 / rank for rank in range(1, 5))
    assert np.allclose(share, [1 / rank / harmonic for rank in range(1, 5)], atol=0.01)


def test_zipf_zero_makes_groups_equally_likely_and_no_groups_share_nothing() -> None:
    groups = draw_groups(SharedPrefixes(groups=5, zipf=0), 0, 50_000)
    assert groups is not None
    assert np.allclose(np.bincount(groups) / 50_000, 0.2, atol=0.01)
    assert draw_groups(SharedPrefixes(groups=0), 0, 10) is None
