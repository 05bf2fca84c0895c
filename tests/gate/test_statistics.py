"""Statistics against scipy, closed forms and brute force."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from kvbench.analysis.gate.self_test import self_test, with_slowdown
from kvbench.analysis.gate.shape import mode_distance
from kvbench.analysis.gate.statistics import detectable, hodges_lehmann, holm, order_effect, paired
from tests.gate.blocks import made, suite


def test_the_paired_t_test_is_that_of_scipy():
    differences = np.random.default_rng(1).normal(0.01, 0.02, (30, 9))
    found, expected = paired(differences), stats.ttest_1samp(differences, 0, axis=1)
    assert found.p_worse == pytest.approx(stats.ttest_1samp(differences, 0, axis=1, alternative="greater").pvalue)
    assert found.p_better == pytest.approx(1 - found.p_worse)
    interval = expected.confidence_interval(0.95)
    assert found.lower(0.025) == pytest.approx(interval.low)
    assert found.upper(0.025) == pytest.approx(interval.high)


def test_p_of_a_far_tail_keeps_its_digits():
    found = paired(1.0 + 0.001 * np.arange(20.0)[None, :])
    assert found.p_worse[0] == pytest.approx(stats.t.sf(found.theta[0] / found.se[0], 19), rel=1e-9)
    assert 0 < found.p_worse[0] < 1e-30


def test_blocks_that_are_all_equal_are_certain():
    found = paired(np.array([[0.1] * 7, [-0.1] * 7, [0.0] * 7]))
    assert found.p_worse.tolist() == [0.0, 1.0, 0.5]
    assert found.se.tolist() == [0.0, 0.0, 0.0]


def _naive_holm(p: list[float], alpha: float) -> list[bool]:
    """Step down: the smallest p is held against α/m, the next against α/(m−1), until one is not rejected."""
    rejected = [False] * len(p)
    for step, at in enumerate(sorted(range(len(p)), key=p.__getitem__)):
        if p[at] > alpha / (len(p) - step):
            break
        rejected[at] = True
    return rejected


@settings(deadline=None, max_examples=200)
@given(
    st.lists(
        st.sampled_from([0.0, 1e-5, 1e-4, 1.3e-4, 2e-4, 8e-4, 0.001, 0.004, 0.0079, 0.3, 1.0]), min_size=1, max_size=40
    )
)
def test_holms_adjusted_p_rejects_what_stepping_down_rejects(p):
    assert (holm(np.array(p)) <= 0.008).tolist() == _naive_holm(p, 0.008)


def test_holm_leaves_out_what_has_no_p():
    found = holm(np.array([[0.001, np.nan, 0.004], [np.nan, np.nan, 0.02]]))
    assert found[0, [0, 2]] == pytest.approx([0.002, 0.004])
    assert found[1, 2] == pytest.approx(0.02)
    assert np.isnan(found[0, 1])


@pytest.mark.parametrize(("df", "alpha"), [(9, 0.008), (9, 0.008 / 60), (15, 0.008 / 10), (23, 0.008 / 120)])
def test_the_minimum_detectable_effect_is_found_with_the_promised_probability(df, alpha):
    """Against the noncentral t distribution; without a margin, so that p alone decides."""
    se = 0.01
    mde = float(detectable(np.array([se]), np.array([float(df)]), alpha, np.array([0.0]), 0.95)[0])
    assert stats.nct.sf(stats.t.isf(alpha, df), df, mde / se) == pytest.approx(0.95, abs=0.02)


def test_the_minimum_detectable_effect_is_above_the_margin_by_what_chance_may_take_away():
    mde = detectable(np.array([0.001]), np.array([20.0]), 0.008, np.array([0.02]), 0.95)
    assert mde == pytest.approx(0.02 + stats.t.ppf(0.95, 20) * 0.001)


def test_hodges_lehmann_is_the_median_of_the_walsh_averages():
    values = [0.0, 0.1, 1.0]
    assert hodges_lehmann(np.array(values)) == pytest.approx(np.median([0.0, 0.05, 0.5, 0.1, 0.55, 1.0]))


def test_the_order_effect_is_a_pooled_t_test():
    differences = np.random.default_rng(2).normal(0, 1, 12)
    order = np.array([1, -1, -1, 1] * 3, np.int8)
    gap, p = order_effect(differences, order)
    first, second = differences[order > 0], differences[order < 0]
    assert gap == pytest.approx((first.mean() - second.mean()) / 2)
    assert p == pytest.approx(stats.ttest_ind(first, second).pvalue)
    assert order_effect(differences, np.ones(12, np.int8)) == (0.0, 1.0)
    assert order_effect(differences, np.zeros(0, np.int8)) == (0.0, 1.0)


def _best_split_by_force(values: np.ndarray) -> tuple[float, float]:
    ranked, least = np.sort(values), max(2, int(np.ceil(0.2 * values.size)))
    splits = [(ranked[:k], ranked[k:]) for k in range(least, values.size - least + 1)]
    low, high = min(splits, key=lambda pair: sum(((part - part.mean()) ** 2).sum() for part in pair))
    within = ((low - low.mean()) ** 2).sum() + ((high - high.mean()) ** 2).sum()
    return within / ((values - values.mean()) ** 2).sum(), high.mean() - low.mean()


def test_two_groups_are_found_by_the_best_split_of_all():
    from kvbench.analysis.gate.shape import limit

    rng = np.random.default_rng(3)
    values = rng.normal(0, 1, (300, 12)) + rng.choice([0, 9], (300, 1)) * (rng.random((300, 12)) < 0.4)
    for row, distance in zip(values, mode_distance(values), strict=True):
        share, expected = _best_split_by_force(row)
        assert distance == pytest.approx(expected if share < limit(12) else 0.0)


@pytest.mark.parametrize("blocks", [8, 10, 16, 24, 40])
def test_normal_noise_is_rarely_called_bimodal_and_clear_modes_always(blocks):
    rng = np.random.default_rng(blocks)
    noise = rng.standard_normal((20_000, blocks))
    assert (mode_distance(noise) > 0).mean() < 0.006
    far = mode_distance(noise[:2000] + 20.0 * (np.arange(blocks) % 2))
    assert (far > 0).mean() > 0.99
    assert np.median(far) == pytest.approx(20.0, rel=0.02)


def test_outliers_are_no_second_mode():
    values = np.random.default_rng(5).normal(0, 0.01, 20)
    values[3] += 1.0
    assert mode_distance(values) == 0.0


def test_a_self_test_of_quiet_unchanged_code_is_valid():
    found = self_test(suite(3, 40), fingerprint="f")
    assert (found.valid, found.problems, found.cases, found.fingerprint) == (True, (), 40, "f")
    assert found.detected >= 0.8 * found.detectable > 0


def test_the_noise_floor_is_the_95th_percentile_of_the_effects():
    cases = [
        made([effect + 0.0001, effect - 0.0001] * 5, case_id=str(effect)) for effect in np.linspace(-0.01, 0.01, 21)
    ]
    assert self_test(cases).noise_floor == pytest.approx(np.expm1(0.01), rel=0.02)


def test_a_self_test_that_differs_by_side_is_not_valid():
    found = self_test([with_slowdown(case, 0.01) for case in suite(3, 40)])
    assert not found.valid
    assert any("not uniform" in problem for problem in found.problems)


def test_a_self_test_that_could_not_see_a_slowdown_is_not_valid():
    found = self_test(suite(3, 40, sd=0.10))
    assert found.problems == ("no case would show a slowdown of 5%",)


def test_a_self_test_with_an_order_effect_is_not_valid():
    order = np.array([1, -1] * 6, np.int8)
    noise = np.random.default_rng(1).normal(0, 0.002, (10, 12))
    found = self_test([made(0.01 * order + row, order=order, case_id=str(at)) for at, row in enumerate(noise)])
    assert any("which side runs first" in problem for problem in found.problems)


def test_a_self_test_whose_blocks_depend_on_each_other_is_not_valid():
    """Independent blocks are called dependent once in a thousand times at most."""
    from kvbench.analysis.gate.exchange import resemblance

    rng = np.random.default_rng(4)
    noise = rng.normal(0, 0.01, (400, 60, 11))
    independent = [resemblance(cases)[1] < 0.001 for cases in noise]
    dependent = noise[0, :, 1:] + 0.5 * noise[0, :, :-1]
    assert sum(independent) <= stats.binom.isf(0.001, 400, 0.001)
    found = self_test([made(row, case_id=str(at)) for at, row in enumerate(dependent)])
    assert any("resemble the block before" in problem for problem in found.problems)


@pytest.mark.parametrize("shared", [0.5, 1.0])
def test_unchanged_cases_that_move_together_are_a_valid_self_test(shared: float) -> None:
    """All cases of a side share its process, and metrics of one case move together: no reason for distrust. The bound
    is what chance makes of 1 % (p values), 0.1 % (blocks) and 1 % (false verdicts)."""
    rng = np.random.default_rng(6)
    noise = np.sqrt(shared) * rng.normal(0, 0.01, (200, 1, 10)) + np.sqrt(1 - shared) * rng.normal(
        0, 0.01, (200, 30, 10)
    )
    problems = [self_test([made(row, case_id=str(at)) for at, row in enumerate(rows)]).problems for rows in noise]
    assert sum(map(bool, problems)) <= stats.binom.isf(0.001, 200, 0.021)


def test_p_values_of_independent_cases_are_judged_as_by_kolmogorov_and_smirnov() -> None:
    """Where cases are independent, ranking among exchanges gives what scipy's test of the p values gives."""
    from kvbench.analysis.gate.exchange import uniformity

    rng = np.random.default_rng(8)
    for effect in (0.0, 0.002, 0.004):
        rows = rng.normal(effect, 0.01, (80, 10))
        p = stats.ttest_1samp(rows, 0.0, axis=-1, alternative="greater").pvalue
        assert uniformity(rows) == pytest.approx(stats.kstest(p, "uniform").pvalue, abs=0.06)


def test_cases_without_any_noise_are_a_valid_self_test() -> None:
    """As under the virtual clock: all p values are ½, in whatever order the sides come."""
    assert self_test([made([0.0] * 10, case_id=str(at)) for at in range(40)]).problems == ()


def test_a_self_test_without_data_or_with_a_case_on_one_side_is_not_valid():
    assert self_test([]).problems[0] == "no case has enough valid blocks"
    odd = made([0.0] * 10, case_id="odd")
    odd.candidate[2] = np.nan
    assert "1 of 41 cases are invalid or have too few blocks" in self_test([*suite(3, 40), odd]).problems
