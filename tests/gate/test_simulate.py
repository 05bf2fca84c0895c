"""The promises of the rule, on suites with known truth. Seeded; the bounds are those of 99 % intervals."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from kvbench.analysis.gate.rules import candidates, judge
from kvbench.analysis.gate.simulate import NOISES, coverage, simulate
from kvbench.analysis.gate.targets import Target, targets
from kvbench.analysis.gate.types import Verdict
from tests.gate.blocks import drawn, suite


@pytest.fixture(scope="module")
def promises() -> list[Target]:
    return list(targets(suites=800))


def test_every_promise_of_the_method_holds(promises):
    missed = [f"{one.name}, {one.setting}: {one.share:.4f} {one.interval()}" for one in promises if not one.holds]
    assert missed == []
    assert len(promises) == 21


def test_m63_sixty_cases_none_different_fail_in_at_most_one_suite_of_a_hundred():
    """2,400 suites in all: 41 and more failing ones would be seen once in 1,000 times at exactly 1 %."""
    failed = [simulate(suites=800, cases=60, sd=sd, confirm=24, seed=7).failed_suites for sd in (0.01, 0.03, 0.08)]
    assert sum(failed) <= stats.binom.isf(0.001, 2400, 0.01)


def test_power_and_false_passes_are_shares_of_the_slowed_cases_alone():
    found = simulate(suites=20, cases=10, sd=0.001, effect=0.10, slowed=4)
    assert (found.found, found.power, found.false_pass, found.pass_rate) == (80, 1.0, 0.0, 1.0)
    assert found.false_fails == 0
    assert found.failed_suites == 20


@pytest.mark.parametrize("confirm", [0, 16])
def test_simulated_verdicts_are_those_of_the_judge(confirm):
    """The same values through `judge`, case by case, and through the arrays."""
    failed = passed = 0
    rng = np.random.default_rng(11)
    for _ in range(12):
        cases = [drawn(rng, 0.03 * (at < 3), sd=0.012, case_id=str(at)) for at in range(8)]
        fresh = [drawn(rng, 0.03 * (int(case.case_id) < 3), sd=0.012, blocks=16, case_id=case.case_id)
                 for case in candidates(cases)]  # fmt: skip
        found = judge(cases, fresh if confirm else None)
        failed += len(found.having(Verdict.FAIL))
        passed += len(found.having(Verdict.PASS))
    arrays = simulate(suites=400, cases=8, sd=0.012, confirm=confirm, effect=0.03, slowed=3, seed=5)
    for count, share in ((failed, arrays.found + arrays.false_fails), (passed, arrays.passed + arrays.false_passes)):
        assert stats.binomtest(count, 96, share / (400 * 8)).pvalue > 1e-4


def test_arrays_and_judge_agree_on_the_very_same_values():
    from kvbench.analysis.gate.decide import CODES, Evidence, decide
    from kvbench.analysis.gate.statistics import log_ratios, paired
    from kvbench.analysis.gate.types import Rule

    suites = [suite(seed, 6, 0.02 * (seed % 3), sd=0.012) for seed in range(10)]
    differences = np.array([[log_ratios(case) for case in cases] for cases in suites])
    shape = differences.shape[:-1]
    codes = decide(paired(differences), Evidence.clean(shape), "single", Rule(), 0.0).code
    judged = [[case.verdict for case in judge(cases).cases] for cases in suites]
    assert [[CODES[code] for code in row] for row in codes] == judged


@pytest.mark.parametrize("noise", ["heavy", "spikes", "bimodal", "drift"])
def test_other_kinds_of_noise_do_not_raise_false_alarms(noise):
    """Outliers, one-sided spikes, two modes, a drifting machine: 400 suites, at most 1 % (99.9 % bound)."""
    failed = simulate(suites=400, cases=60, sd=0.03, confirm=24, noise=noise, seed=3).failed_suites
    assert failed <= stats.binom.isf(0.001, 400, 0.01)
    assert coverage(blocks=10, sd=0.03, trials=4000, noise=noise) > 0.93


def test_m65_cases_with_two_modes_are_not_failed_by_chance():
    found = simulate(suites=400, cases=60, sd=0.08, confirm=24, noise="bimodal", seed=4)
    assert found.false_fails <= stats.binom.isf(0.001, 400, 0.01)


def test_noise_has_mean_0_and_standard_deviation_1():
    for draw in NOISES.values():
        values = draw(np.random.default_rng(1), (2, 4000, 10, 10))
        assert abs(values.mean()) < 0.02
        assert values.std() == pytest.approx(1.0, rel=0.05)


def test_the_interval_of_a_share_is_that_of_scipy():
    for hits, trials in ((0, 50), (7, 50), (50, 50)):
        expected = stats.binomtest(hits, trials).proportion_ci(0.99, "exact")
        assert Target("", "", 0, 1, hits, trials).interval() == pytest.approx((expected.low, expected.high))
