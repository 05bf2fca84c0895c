"""What a verdict rests on: intervals as scipy has them, pairs by sample, words only where the interval allows them."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from kvbench.analysis.claims.best import best_among
from kvbench.analysis.claims.estimates import Estimate, Finding, average_ratio, differences, levels, most, ratios
from kvbench.analysis.claims.evidence import Evidence
from kvbench.analysis.claims.judge import (
    DIFFERENT,
    Band,
    Claim,
    about,
    between,
    differs,
    everywhere,
    less_than,
    more_than,
    opposed,
)
from tests.analysis.claims.runs import around, evidence

CLAIM = Claim("it is more", "a over b", more_than(1))
A, B = {"block_size": 4}, {"block_size": 16}
samples = st.lists(st.floats(1e-3, 1e3), min_size=2, max_size=8)


def run(left: list[float], right: list[float], **options: Any) -> Evidence:
    return evidence([(A, {"wall_s": left}), (B, {"wall_s": right})], samples=len(left), **options)


@given(samples, st.data())
def test_a_ratio_has_the_interval_of_the_paired_t_on_logarithms(left: list[float], data: st.DataObject) -> None:
    right = data.draw(st.lists(st.floats(1e-3, 1e3), min_size=len(left), max_size=len(left)))
    (found,) = ratios(run(left, right), "wall_s", A, B).estimates
    logs = np.log(left) - np.log(right)
    assert found.value == pytest.approx(math.exp(logs.mean()), rel=1e-6)
    if np.ptp(logs) > 1e-9:
        low, high = stats.ttest_1samp(logs, 0.0).confidence_interval(0.95)
        assert found.interval() == pytest.approx((math.exp(low), math.exp(min(high, 700))), rel=1e-6)


@given(samples)
def test_a_level_has_the_interval_of_t(values: list[float]) -> None:
    (found,) = levels(run(values, values), "wall_s", A).estimates
    assert found.value == pytest.approx(np.mean(values))
    if np.ptp(values) > 1e-6:
        low, high = stats.ttest_1samp(values, 0.0).confidence_interval(0.95)
        assert found.interval() == pytest.approx((low, high), rel=1e-6, abs=1e-9)


def test_samples_are_paired_by_process() -> None:
    """A slow process is slow for both: the ratio does not vary although both sides do."""
    slow = [1.0, 3.0, 9.0]
    (found,) = ratios(run([1.1 * s for s in slow], slow), "wall_s", A, B).estimates
    assert found.interval() == pytest.approx((1.1, 1.1))


def test_only_cases_that_are_equal_otherwise_are_compared() -> None:
    cases = [({**side, "kv_dtype": dtype}, {"wall_s": 1.0 + n}) for n, side in enumerate((A, B)) for dtype in "xy"]
    found = ratios(evidence(cases), "wall_s", A, B).estimates
    assert [one.where for one in found] == ["kv_dtype=x", "kv_dtype=y"]
    assert all(one.value == pytest.approx(0.5, rel=0.01) for one in found)


@pytest.mark.parametrize(
    ("value", "interval", "word"),
    [
        (1.5, 0.1, "held"),
        (0.5, 0.1, "not held"),
        (1.05, 0.3, "unclear"),
    ],
)
def test_the_whole_interval_must_be_on_one_side(value: float, interval: float, word: str) -> None:
    one = Estimate("", math.log(value), interval, 4.0, 5, is_ratio=True)
    assert everywhere(CLAIM, Finding((one,))).held == word


def test_one_sample_is_unclear_unless_it_is_modelled_or_follows_from_the_settings() -> None:
    alone = run([2.0], [1.0])
    assert everywhere(CLAIM, ratios(alone, "wall_s", A, B)).held == "unclear"
    assert everywhere(CLAIM, ratios(alone, "wall_s", A, B, is_arithmetic=True)).held == "held"
    virtual = ratios(run([2.0], [1.0], clock="virtual"), "wall_s", A, B)
    verdict = everywhere(CLAIM, virtual, is_modelled=True)
    assert (verdict.held, verdict.is_modelled, verdict.because.split(":")[0]) == ("held", True, "modelled")


def test_a_single_place_that_contradicts_refutes_and_one_that_is_unsure_makes_it_unclear() -> None:
    sure, unsure = (Estimate("", math.log(2.0), se, 4.0, 5, is_ratio=True) for se in (0.01, 1.0))
    against = Estimate("", math.log(0.5), 0.01, 4.0, 5, is_ratio=True)
    for estimates, word in (((sure, sure), "held"), ((sure, unsure), "unclear"), ((sure, unsure, against), "not held")):
        assert everywhere(CLAIM, Finding(estimates)).held == word


def test_one_of_many_places_must_be_further_off_to_refute() -> None:
    """t = 3 on 4 degrees of freedom: p = 0.04 two-sided, enough alone and not among ten."""
    against = Estimate("", -0.03, 0.01, 4.0, 5, is_ratio=True)
    sure = Estimate("", 1.0, 0.01, 4.0, 5, is_ratio=True)
    assert everywhere(CLAIM, Finding((against,))).held == "not held"
    assert everywhere(CLAIM, Finding((against, *[sure] * 9))).held == "unclear"


@pytest.mark.parametrize(("value", "word"), [(1.5, "held"), (1.001, "not held"), (1.03, "unclear")])
def test_settings_differ_when_the_ratio_is_off_1_and_are_the_same_within_two_percent(value: float, word: str) -> None:
    spread = 0.02 if word == "unclear" else 0.001
    assert differs(CLAIM, Finding((Estimate("", math.log(value), spread, 4.0, 5, is_ratio=True),))).held == word


def ratio_of(value: float, se: float = 0.001) -> Estimate:
    return Estimate("", math.log(value), se, 4.0, 5, is_ratio=True)


@pytest.mark.parametrize(("values", "word"), [((1.01, 1.01), "not held"), ((1.01, 1.5), "held"), ((0.9, 1.0), "held")])
def test_a_difference_counts_where_it_is_certain_to_be_more_than_two_percent(
    values: tuple[float, ...], word: str
) -> None:
    assert differs(CLAIM, Finding(tuple(map(ratio_of, values)))).held == word


def test_a_small_difference_that_is_certain_beside_an_unsure_one_is_not_what_differs() -> None:
    """+0.5 % for sure and something between -7 and +9 %: nothing here is beyond 2 % for certain."""
    assert differs(CLAIM, Finding((ratio_of(1.005, 0.0005), ratio_of(1.01, 0.03)))).held == "unclear"


def test_what_has_no_numbers_may_differ() -> None:
    alike, different = (ratio_of(1.001),), (ratio_of(1.001), ratio_of(1.5))
    assert differs(Claim("", "", DIFFERENT), Finding(alike, missing=1)).held == "unclear"
    verdict = differs(Claim("", "", DIFFERENT), Finding(different, missing=1))
    assert (verdict.held, "without numbers of 1 more" in verdict.because) == ("held", True)


@pytest.mark.parametrize(
    ("first", "second", "word"),
    [
        (ratio_of(0.5), ratio_of(1.5), "held"),
        (ratio_of(1.5), ratio_of(0.5), "held"),
        (ratio_of(1.5), ratio_of(1.5), "not held"),
        (ratio_of(0.5), ratio_of(0.5), "not held"),
        (ratio_of(0.5), ratio_of(1.001), "not held"),
        (ratio_of(0.5, 0.5), ratio_of(1.5), "unclear"),
        (ratio_of(1.001), ratio_of(1.001), "unclear"),
    ],
)
def test_opposed_numbers_move_both_and_apart(first: Estimate, second: Estimate, word: str) -> None:
    pair = Finding((first,)), Finding((second,))
    assert opposed(CLAIM, *pair, names=("a", "b")).held == word


def test_opposed_numbers_of_which_a_place_is_missing_do_not_hold() -> None:
    pair = Finding((ratio_of(0.5),), missing=1), Finding((ratio_of(1.5),))
    assert opposed(CLAIM, *pair, names=("a", "b")).held == "unclear"


@pytest.mark.parametrize(
    ("counts", "word"), [([0, 0, 0], "held"), ([0, 0, 1], "not held"), ([0], "unclear"), ([3], "not held")]
)
def test_what_must_never_happen_is_refuted_by_once(counts: list[float], word: str) -> None:
    claim = Claim("never", "preemptions", Band("none", low=0, high=0), "")
    found = most(evidence([(A, {"preemptions": counts})], samples=len(counts)), "preemptions", A)
    assert everywhere(claim, found).held == word


def test_a_place_that_refutes_is_enough_beside_one_with_a_single_sample() -> None:
    alone = Estimate("", math.log(2.0), 0.0, 0.0, 1, is_ratio=True)
    assert everywhere(CLAIM, Finding((alone, ratio_of(0.5)))).held == "not held"
    assert everywhere(CLAIM, Finding((alone, ratio_of(2.0)))).held == "unclear"


def test_a_rival_without_numbers_may_be_the_best() -> None:
    cases = [({"block_size": size}, {"output_tokens_per_s": v}) for size, v in ((4, 90.0), (16, 100.0), (64, 95.0))]
    words = [
        best_among(CLAIM, evidence(cases, failed=failed), "output_tokens_per_s", "block_size", (16,)).held
        for failed in ((), (2,))
    ]
    assert words == ["held", "unclear"]


@given(st.floats(-5, 5), st.floats(0, 5))
def test_no_interval_both_holds_and_refutes(low: float, width: float) -> None:
    bands = (more_than(1), less_than(1), between(1, 2), about(1 / 3, "a third"), Band("", low=0, is_strict=True))
    for band in bands:
        assert not (band.holds((low, low + width)) and band.refutes((low, low + width)))


def test_a_count_that_is_zero_on_one_side_is_compared_by_its_difference() -> None:
    cases = [(A, {"preemptions": [5, 6, 7, 6, 5]}), (B, {"preemptions": [0.0] * 5})]
    finding = differences(evidence(cases), "preemptions", A, B)
    assert everywhere(Claim("more", "more of them", more_than(0, "any"), ""), finding).held == "held"
    assert not ratios(evidence(cases), "preemptions", A, B).estimates


def test_what_is_missing_is_named() -> None:
    whole = evidence([(A, {"wall_s": 1.0}), (B, {"wall_s": None})])
    assert "no engine case with block_size=8" in ratios(whole, "wall_s", {"block_size": 8}, B).lack
    assert "block_size=16 has wall_s" in ratios(whole, "wall_s", A, B).lack
    assert "ended ok" in ratios(evidence([(A, {"wall_s": 1.0}), (B, {})], failed=[0]), "wall_s", A, B).lack
    assert everywhere(CLAIM, Finding(lack="why")).because == "why"


def test_the_best_must_beat_every_rival_and_a_tie_is_unclear() -> None:
    def verdict(*speeds: float | list[float]) -> str:
        sizes = (4, 16, 64, 256)
        cases = [({"block_size": size}, {"output_tokens_per_s": v}) for size, v in zip(sizes, speeds, strict=True)]
        return best_among(CLAIM, evidence(cases), "output_tokens_per_s", "block_size", (16, 64)).held

    assert verdict(90.0, 100.0, 95.0, 80.0) == "held"
    assert verdict(110.0, 100.0, 95.0, 80.0) == "not held"
    assert verdict(around(100.0, 0.05), around(100.5, 0.05, 1), 95.0, 80.0) == "unclear"


def test_numbers_are_plain_json_even_where_an_interval_is_endless() -> None:
    wild = Estimate("", 1.0, 1e6, 1.0, 2, is_ratio=True)
    json.dumps(everywhere(CLAIM, Finding((wild,))).numbers, allow_nan=False)


def test_a_change_that_is_certain_and_does_not_matter_is_no_change() -> None:
    """Half a percent, known to a tenth: not what "raises" means."""
    tiny = Estimate("", math.log(1.005), 0.0002, 4.0, 5, is_ratio=True)
    verdict = everywhere(CLAIM, Finding((tiny,)))
    assert (verdict.held, "within 2 %" in verdict.because) == ("not held", True)


@pytest.mark.parametrize(("ratio", "word"), [(1.01, "unclear"), (0.99, "unclear"), (1.05, "held"), (0.95, "not held")])
def test_a_cost_model_is_not_trusted_with_two_percent(ratio: float, word: str) -> None:
    found = ratios(run([ratio], [1.0], clock="virtual"), "wall_s", A, B)
    assert everywhere(CLAIM, found, is_modelled=True).held == word


def test_a_place_without_numbers_keeps_a_claim_about_all_places_from_holding() -> None:
    cases = [({**side, "kv_dtype": dtype}, {"wall_s": 2.0 - n}) for n, side in enumerate((A, B)) for dtype in "xy"]
    whole, broken = (ratios(evidence(cases, failed=failed), "wall_s", A, B) for failed in ((), (1,)))
    assert [everywhere(CLAIM, one).held for one in (whole, broken)] == ["held", "unclear"]


@pytest.mark.parametrize(
    ("values", "words"), [((5.0,), "above it"), ((0.1,), "below it"), ((0.1, 5.0), "beside it in 2 of 2")]
)
def test_a_number_beside_a_range_says_on_which_side(values: tuple[float, ...], words: str) -> None:
    found = Finding(tuple(Estimate("", math.log(value), 0.01, 4.0, 5, is_ratio=True) for value in values))
    verdict = everywhere(Claim("two to four", "a over b", between(2, 4)), found)
    assert (verdict.held, words in verdict.because) == ("not held", True)


def test_an_average_over_the_other_axes_is_that_of_the_log_ratios_sample_by_sample() -> None:
    rng = np.random.default_rng(3)
    values = {(size, dtype): rng.uniform(1, 2, 4).tolist() for size in (4, 16) for dtype in "xyz"}
    cases = [({"block_size": size, "kv_dtype": dtype}, {"wall_s": v}) for (size, dtype), v in values.items()]
    (found,) = average_ratio(evidence(cases, samples=4), "wall_s", A, B, "4").estimates
    logs = np.array([np.log(values[4, dtype]) - np.log(values[16, dtype]) for dtype in "xyz"]).mean(axis=0)
    low, high = stats.ttest_1samp(logs, 0.0).confidence_interval(0.95)
    assert found.value == pytest.approx(math.exp(logs.mean()))
    assert found.interval() == pytest.approx((math.exp(low), math.exp(high)))


def test_times_that_vary_by_factors_are_more_than_none_and_one_zero_leaves_it_open() -> None:
    claim = Claim("it waits", "waited", more_than(0, "more than 0 s"), "s")
    for values, word in (([0.01, 0.02, 2.0], "held"), ([0.0, 0.02, 2.0], "unclear"), ([0.0, 0.0, 0.0], "not held")):
        found = levels(run(values, values), "wall_s", A, is_scale=True)
        assert everywhere(claim, found).held == word
        assert found.estimates[0].interval()[0] > 0 or min(values) == 0
