"""The rules in their order, at their boundaries."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbench.analysis.gate.rules import candidates, judge
from kvbench.analysis.gate.self_test import self_test, with_slowdown
from kvbench.analysis.gate.types import CaseBlocks, Reason, Verdict
from kvbench.errors import ExitCode
from tests.gate.blocks import drawn, made, suite

_TRUSTED = self_test(suite(3, 40))
_QUIET = [0.001, -0.001] * 5


def test_unchanged_code_passes():
    found = judge(suite(1, 20), self_test=_TRUSTED)
    assert (found.verdict, found.exit_code()) == (Verdict.PASS, ExitCode.OK)
    assert all(case.verdict is Verdict.PASS for case in found.cases)


def test_the_slow_cases_and_no_others_fail():
    fast = suite(1, 10)
    slow = [replace(case, case_id=f"slow-{case.case_id}") for case in suite(5, 10, 0.05)]
    found = judge(fast + slow, self_test=_TRUSTED)
    assert [case.case_id for case in found.having(Verdict.FAIL)] == [case.case_id for case in slow]
    assert found.exit_code() == ExitCode.NO


def test_m64_an_improvement_is_reported_and_exits_0():
    found = judge(suite(5, 10, -0.05), self_test=_TRUSTED)
    assert (found.verdict, found.exit_code()) == (Verdict.IMPROVED, ExitCode.OK)
    assert found.having(Verdict.FAIL) == []


def test_m62_identical_code_with_one_process_a_side_is_no_regression():
    """Unlocked clocks, one process per side, 30 % apart."""
    found = judge([made([0.3], case_id=str(at)) for at in range(5)], self_test=_TRUSTED)
    assert {case.verdict for case in found.cases} == {Verdict.INCONCLUSIVE}
    assert found.cases[0].reasons[0] is Reason.TOO_FEW_BLOCKS
    assert found.exit_code() == ExitCode.PARTIAL


@pytest.mark.parametrize(
    ("baseline", "candidate", "reason"),
    [
        ([], [], Reason.NO_SAMPLES),
        ([1.0] * 10, [], Reason.ONE_SIDED),
        ([], [1.0] * 10, Reason.ONE_SIDED),
        ([1.0] * 10, [1.0] * 9 + [np.nan], Reason.NOT_A_NUMBER),
        ([np.inf] + [1.0] * 9, [1.0] * 10, Reason.NOT_A_NUMBER),
        ([1.0] * 10, [1.0] * 9 + [0.0], Reason.NOT_POSITIVE),
        ([1.0] * 10, [-1.0] * 10, Reason.NOT_POSITIVE),
        ([1.0] * 10, [1.0] * 9, Reason.UNPAIRED),
    ],
)
@pytest.mark.parametrize("inconclusive", ["pass", "fail", "neutral"])
def test_m61_missing_data_is_invalid_and_never_0_or_1(baseline, candidate, reason, inconclusive):
    """NaN, no samples, a case missing on one side; beside a sound case, a slow one, and alone."""
    bad = CaseBlocks("bad", "decode_s", "higher", np.array(baseline), np.array(candidate))
    for others in ([], suite(1, 3), suite(5, 3, 0.1)):
        found = judge([*others, bad], self_test=_TRUSTED)
        assert found.cases[-1].verdict is Verdict.INVALID
        assert reason in found.cases[-1].reasons
        assert found.exit_code(inconclusive) == ExitCode.BAD_DATA


def test_m61_no_case_at_all_is_invalid():
    assert judge([], self_test=_TRUSTED).exit_code("pass") == ExitCode.BAD_DATA


def test_without_a_self_test_a_fail_is_advice():
    found = judge(suite(5, 10, 0.1))
    assert found.verdict is Verdict.FAIL
    assert all(case.advisory and Reason.ADVISORY in case.reasons for case in found.cases)
    codes = [found.exit_code(how) for how in ("neutral", "pass", "fail")]
    assert codes == [ExitCode.PARTIAL, ExitCode.OK, ExitCode.NO]


@pytest.mark.parametrize(
    ("effect", "verdict"), [(0.0199, Verdict.PASS), (0.0201, Verdict.FAIL), (-0.0201, Verdict.IMPROVED)]
)
def test_the_margin_of_2_percent_decides_however_certain_a_difference_is(effect, verdict):
    case = made(np.log1p(effect) + np.array(_QUIET) / 100)
    assert judge([case], self_test=_TRUSTED).cases[0].verdict is verdict


def test_the_noise_floor_takes_the_place_of_a_smaller_margin():
    loud = replace(_TRUSTED, noise_floor=0.028)
    verdicts = [
        judge([made(np.log1p(effect) + np.array(_QUIET) / 100)], self_test=loud).cases[0].verdict
        for effect in (0.027, 0.029)
    ]
    assert verdicts == [Verdict.PASS, Verdict.FAIL]


def test_nothing_passes_where_unchanged_code_differs_by_more_than_3_percent():
    noisy = replace(_TRUSTED, noise_floor=0.031)
    quiet, slow = judge([made(_QUIET), made(np.array(_QUIET) + 0.05)], self_test=noisy).cases
    assert (quiet.verdict, slow.verdict) == (Verdict.INCONCLUSIVE, Verdict.FAIL)
    assert Reason.NOISY in quiet.reasons


def test_differences_below_the_absolute_floor_pass():
    """3 µs of 20 µs, where the clock cannot tell 5 µs apart."""
    slow = made(np.array(_QUIET) + np.log1p(0.15))
    assert judge([replace(slow, absolute_floor=0.2)], self_test=_TRUSTED).cases[0].verdict is Verdict.PASS
    assert judge([replace(slow, absolute_floor=0.1)], self_test=_TRUSTED).cases[0].verdict is Verdict.FAIL


def test_m65_a_bimodal_case_is_flagged_and_not_failed():
    """Both sides have modes 10 % apart; the candidate happens to be in the slow one more often."""
    noise = np.random.default_rng(7).normal(0, 0.002, (2, 20))
    baseline = np.exp(noise[0] + 0.1 * (np.arange(20) < 4))
    candidate = np.exp(noise[1] + 0.1 * (np.arange(20) < 16))
    found = judge([CaseBlocks("c", "decode_s", "higher", baseline, candidate)], self_test=_TRUSTED).cases[0]
    assert found.effect > 0.05
    assert found.verdict is Verdict.INCONCLUSIVE
    assert Reason.BIMODAL in found.reasons


def test_m65_a_slowdown_beyond_the_modes_fails_all_the_same():
    noise = np.random.default_rng(7).normal(0, 0.002, (2, 20))
    baseline = np.exp(noise[0] + 0.04 * (np.arange(20) % 2))
    candidate = np.exp(noise[1] + 0.04 * (np.arange(20) % 2) + 0.3)
    found = judge([CaseBlocks("c", "decode_s", "higher", baseline, candidate)], self_test=_TRUSTED).cases[0]
    assert found.verdict is Verdict.FAIL
    assert Reason.BIMODAL in found.reasons


def test_processes_that_were_still_drifting_are_not_passed():
    assert judge([made(_QUIET, not_stationary=0.2)]).cases[0].verdict is Verdict.PASS
    found = judge([made(_QUIET, not_stationary=0.3)]).cases[0]
    assert (found.verdict, found.reasons) == (Verdict.INCONCLUSIVE, (Reason.NOT_STATIONARY,))


def test_a_disturbed_case_is_invalid():
    assert judge([made(_QUIET, disturbed=True)]).cases[0].reasons == (Reason.DISTURBED,)


def test_an_order_effect_is_flagged_and_not_failed():
    order = np.array([1, -1] * 6, np.int8)
    case = made(0.04 + 0.06 * order + np.array([0.001, 0.001, -0.001, -0.001] * 3), order=order)
    found = judge([case], self_test=_TRUSTED).cases[0]
    assert found.verdict is Verdict.INCONCLUSIVE
    assert Reason.ORDER_EFFECT in found.reasons


def test_an_inconclusive_case_says_why():
    (wide,) = judge([made([0.05, -0.05] * 5)], self_test=_TRUSTED).cases
    assert (wide.verdict, wide.reasons) == (Verdict.INCONCLUSIVE, (Reason.MDE_ABOVE_MARGIN,))


def test_candidates_are_judged_on_fresh_blocks_alone():
    screen = [*suite(1, 5), drawn(np.random.default_rng(2), 0.1, case_id="lucky")]
    asked = candidates(screen, self_test=_TRUSTED)
    assert [case.case_id for case in asked] == ["lucky"]
    fresh = [drawn(np.random.default_rng(3), 0.0, blocks=24, case_id="lucky")]
    found = judge(screen, fresh, self_test=_TRUSTED)
    assert (found.cases[-1].verdict, found.cases[-1].stage, found.cases[-1].blocks) == (Verdict.PASS, "confirm", 24)
    assert {case.stage for case in found.cases[:-1]} == {"screen"}


def test_a_candidate_without_fresh_blocks_is_invalid():
    found = judge([drawn(np.random.default_rng(2), 0.1)], [], self_test=_TRUSTED)
    assert found.cases[0].reasons == (Reason.UNCONFIRMED,)
    assert found.exit_code("pass") == ExitCode.BAD_DATA


def test_fresh_blocks_of_a_case_that_passed_the_screen_change_nothing():
    screen, fresh = suite(1, 3), [drawn(np.random.default_rng(3), 0.5, blocks=24, case_id="case-0")]
    assert judge(screen, fresh, self_test=_TRUSTED).verdict is Verdict.PASS


def test_a_small_uniform_slowdown_fails_the_suite_though_every_case_is_within_its_margin():
    found = judge(suite(1, 60, 0.01), self_test=_TRUSTED)
    assert found.having(Verdict.FAIL) == []
    assert found.uniform is not None
    assert (found.uniform.verdict, found.exit_code()) == (Verdict.FAIL, ExitCode.NO)
    assert found.uniform.low < 0.01 < found.uniform.high


def test_a_uniform_difference_that_does_not_matter_is_left_alone():
    found = judge(suite(1, 60, 0.003, sd=0.001), self_test=_TRUSTED)
    assert found.verdict is Verdict.PASS


def test_counters_that_are_exactly_equal_pass_and_exactly_worse_fail():
    same, more = judge([made([0.0] * 10), made([np.log(1.25)] * 10, case_id="d")], self_test=_TRUSTED).cases
    assert (same.verdict, more.verdict) == (Verdict.PASS, Verdict.FAIL)
    assert more.low == pytest.approx(0.25)


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 2**32), st.floats(-0.2, 0.2), st.floats(0.0005, 0.05), st.integers(2, 24))
def test_swapping_the_sides_mirrors_the_verdict(seed, effect, sd, blocks):
    case = drawn(np.random.default_rng(seed), effect, sd=sd, blocks=blocks)
    there = judge([case]).cases[0]
    back = judge([replace(case, baseline=case.candidate, candidate=case.baseline, order=-case.order)]).cases[0]
    mirror = {Verdict.FAIL: Verdict.IMPROVED, Verdict.IMPROVED: Verdict.FAIL}
    if Verdict.PASS not in (there.verdict, back.verdict):
        assert back.verdict is mirror.get(there.verdict, there.verdict)
    assert back.effect == pytest.approx(1 / (1 + there.effect) - 1, abs=1e-12)
    assert back.p_better == pytest.approx(there.p_worse)


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 2**32), st.floats(-0.1, 0.1), st.floats(0.001, 0.03))
def test_the_direction_of_a_metric_changes_nothing_but_its_sign(seed, effect, sd):
    times = drawn(np.random.default_rng(seed), effect, sd=sd)
    rates = replace(times, worse="lower", baseline=1 / times.baseline, candidate=1 / times.candidate)
    one, other = judge([times]).cases[0], judge([rates]).cases[0]
    assert one.verdict is other.verdict
    assert other.effect == pytest.approx(one.effect, abs=1e-12)


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 2**32), st.integers(5, 8), st.floats(0.0, 0.06), st.integers(1, 30))
def test_adding_unchanged_cases_never_creates_a_fail(seed, cases, effect, more):
    """The suite-wide test counts too: five cases have one."""
    some = suite(seed, cases, effect)
    same = [made([0.0] * 10, case_id=f"same-{at}") for at in range(more)]
    before, after = judge(some), judge(some + same)
    worse = [new.key for old, new in zip(before.cases, after.cases, strict=False) if _turned(old, new)]
    assert worse == []
    if before.verdict is not Verdict.FAIL:
        assert after.verdict is not Verdict.FAIL


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 2**32), st.integers(1, 4), st.floats(-0.06, 0.06), st.integers(1, 5))
def test_judging_the_same_cases_twice_over_never_creates_a_fail(seed, cases, effect, times):
    some = suite(seed, cases, effect)
    before, after = judge(some), judge(some * (times + 1))
    assert not any(_turned(old, new) for old, new in zip(before.cases, after.cases, strict=False))


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 2**32), st.integers(1, 9), st.sampled_from([np.nan, np.inf, -np.inf, 0.0, -1.0]))
def test_a_value_that_is_no_number_never_passes(seed, at, value):
    case = drawn(np.random.default_rng(seed))
    case.candidate[at] = value
    found = judge([case, *suite(seed, 2)])
    assert found.cases[0].verdict is Verdict.INVALID
    assert found.exit_code("pass") == ExitCode.BAD_DATA


def test_an_injected_slowdown_is_worse_in_either_direction():
    for worse in ("higher", "lower"):
        assert judge([with_slowdown(made(_QUIET, worse=worse), 0.05)]).cases[0].effect == pytest.approx(0.05, abs=1e-6)


def _turned(old, new) -> bool:
    return new.verdict is Verdict.FAIL and old.verdict is not Verdict.FAIL
