"""The decision: against cases worked out by hand and against scipy's paired intervals."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from kvbench.analysis.advice.candidates import (
    Candidate,
    Gaps,
    Range,
    gaps_of_predictions,
    gaps_of_rounds,
    pooled_half,
)
from kvbench.analysis.advice.decide import Slo, decide

SIZES = (8, 16, 32, 64)
NEIGHBOURS = [[1], [0, 2], [1, 3], [2]]


def candidate(
    rate: float | None, *, ttft: float = 1.0, tpot: float = 0.01, refusal: str | None = None, lost: float = 0.0
) -> Candidate:
    value = None if rate is None else Range(rate, rate, rate)
    ends = Range(ttft, ttft * 0.9, ttft * 1.1), Range(tpot, tpot, tpot)
    return Candidate("c", {}, value, *ends, refusal, precision_lost=lost)


def gaps(rates: list[float], half: float) -> Gaps:
    logs = np.log(rates)
    halves = np.full((len(rates), len(rates)), half)
    np.fill_diagonal(halves, 0.0)
    return Gaps(logs[:, None] - logs[None, :], halves)


def test_the_fastest_is_chosen_where_it_can_be_told_apart_and_losses_are_shares_of_its_throughput() -> None:
    rates = [100.0, 120.0, 110.0, 90.0]
    found = decide([candidate(rate) for rate in rates], gaps(rates, 0.01), usual=[0], neighbours=NEIGHBOURS)
    assert (found.verdict, found.chosen, found.runner_up, found.tied, found.worst) == ("clear", 1, 2, (1,), 3)
    assert [loss.value for loss in found.losses if loss] == pytest.approx([1 / 6, 0, 1 / 12, 1 / 4])
    worst = found.losses[3]
    assert worst is not None
    assert worst.low == pytest.approx(1 - 0.75 * math.exp(0.01))
    assert worst.high == pytest.approx(1 - 0.75 * math.exp(-0.01))


def test_tied_candidates_give_way_to_a_usual_default_that_is_near_and_to_no_default_that_is_far() -> None:
    near = [99.0, 99.7, 100.0, 99.9]
    found = decide([candidate(rate) for rate in near], gaps(near, 0.02), usual=[1], neighbours=NEIGHBOURS)
    assert (found.verdict, found.chosen, found.tied) == ("tied", 1, (0, 1, 2, 3))
    assert "usual default" in found.rule
    far = [99.0, 99.0, 100.0, 99.9]
    found = decide([candidate(rate) for rate in far], gaps(far, 0.02), usual=[1], neighbours=NEIGHBOURS)
    assert (found.verdict, found.chosen) == ("tied", 2)
    assert "neighbours" in found.rule


def test_among_tied_ones_the_one_between_good_neighbours_is_chosen() -> None:
    rates = [100.0, 99.9, 99.8, 90.0]
    found = decide([candidate(rate) for rate in rates], gaps(rates, 0.02), neighbours=NEIGHBOURS)
    assert found.tied == (0, 1, 2)
    assert found.chosen == 1  # 8 has a neighbour on one side only, and 32 stands beside 64


def test_among_tied_dtypes_that_are_near_the_one_that_loses_least_precision_is_chosen() -> None:
    rates = [100.0, 99.9, 99.8, 99.0]
    lost = [3e-3, 1e-4, math.inf, 0.0]
    given = [candidate(rate, lost=error) for rate, error in zip(rates, lost, strict=True)]
    found = decide(given, gaps(rates, 0.02))
    assert (found.verdict, found.chosen) == ("tied", 1)  # the exact one is 1 % behind
    assert "lose least precision" in found.rule
    assert decide(given[:1] + given[2:], gaps([100.0, 99.8, 99.0], 0.02)).chosen == 0  # the other's is not known


def test_of_several_usual_defaults_the_best_is_preferred() -> None:
    rates = [99.6, 99.8, 100.0, 99.9]
    found = decide([candidate(rate) for rate in rates], gaps(rates, 0.02), usual=[0, 1])
    assert found.chosen == 1
    assert "usual default" in found.rule


def test_the_rule_says_what_it_did() -> None:
    alone = decide([candidate(100.0), candidate(99.0)], gaps([100.0, 99.0], 0.02), neighbours=[[1], [0]])
    assert (alone.chosen, "by no certain difference" in alone.rule) == (0, True)
    closed = [candidate(100.0), candidate(99.9), candidate(None)]
    found = decide(closed, gaps([100.0, 99.9, math.nan], 0.02), neighbours=[[1], [0, 2], [1]])
    assert "both sides" not in found.rule  # what is refused is no good neighbour
    assert "highest value" in decide(closed, gaps([100.0, 99.9, math.nan], 0.02)).rule


def test_what_nothing_compares_is_tied_and_ranks_by_what_is_known() -> None:
    found = Gaps(np.array([[0, 0.1, np.nan], [-0.1, 0, np.nan], [np.nan, np.nan, 0]]), np.full((3, 3), 0.01))
    decided = decide([candidate(100.0), candidate(90.0), candidate(95.0)], found)
    assert (decided.chosen, decided.tied, decided.worst) == (0, (0, 2), 1)


def test_objectives_filter_first_and_none_left_is_said() -> None:
    rates = [100.0, 120.0, 110.0, 90.0]
    given = [candidate(rate, ttft=ttft) for rate, ttft in zip(rates, [1.0, 3.0, 2.1, 1.95], strict=True)]
    found = decide(given, gaps(rates, 0.001), slo=Slo(ttft_s=2.0))
    assert found.chosen == 0
    assert [bool(text) for text in found.missed] == [False, True, True, False]
    assert found.doubtful == (False, False, True, True)
    none = decide(given, gaps(rates, 0.001), slo=Slo(ttft_s=0.5))
    assert (none.verdict, none.chosen, none.runner_up, none.worst) == ("none", None, None, None)
    assert all(none.missed)


def test_an_objective_that_a_candidate_has_no_number_for_is_missed() -> None:
    given = [Candidate("c", {}, Range(1, 1, 1))]
    assert decide(given, gaps([1.0], 0.0), slo=Slo(tpot_s=1.0)).verdict == "none"


def test_refused_missing_and_not_finite_candidates_are_never_chosen_nor_on_the_front() -> None:
    given = [candidate(500.0, refusal="lossy"), candidate(None), candidate(math.nan), candidate(100.0)]
    found = decide(given, gaps([500.0, math.nan, math.nan, 100.0], 0.01))
    assert (found.verdict, found.chosen, found.front) == ("alone", 3, (False, False, False, True))
    assert found.losses[:3] == (None, None, None)


def test_the_front_is_throughput_against_both_latencies() -> None:
    given = [candidate(100, ttft=1.0), candidate(120, ttft=2.0), candidate(90, ttft=1.0), candidate(100, tpot=0.02)]
    assert decide(given, gaps([100.0, 120.0, 90.0, 100.0], 0.0)).front == (True, True, False, False)


def test_gaps_of_rounds_are_paired_t_intervals_of_logarithms() -> None:
    rng = np.random.default_rng(3)
    slow_rounds = rng.lognormal(0.0, 0.2, (5, 1))
    rounds = np.array([100.0, 103.0, 90.0]) * slow_rounds * rng.lognormal(0.0, 0.01, (5, 3))
    found = gaps_of_rounds(rounds)
    for a, b in ((0, 1), (1, 2), (2, 0)):
        paired = stats.ttest_rel(np.log(rounds[:, a]), np.log(rounds[:, b]))
        low, high = paired.confidence_interval(0.95)
        assert found.value[a, b] == pytest.approx((low + high) / 2)
        assert found.half[a, b] == pytest.approx((high - low) / 2)
    assert np.diag(found.half).tolist() == [0.0, 0.0, 0.0]


def test_one_round_tells_nothing_apart() -> None:
    assert not gaps_of_rounds(np.array([[100.0, 200.0]])).can_tell(0, 1)


def test_what_a_model_gets_wrong_about_two_candidates_elsewhere_is_taken_off_their_prediction() -> None:
    errors = np.array([[0.02, -0.01, 0.05], [0.04, 0.03, np.nan], [0.00, -0.04, np.nan]])
    found = gaps_of_predictions([100.0, 110.0, 120.0], errors, floor=0.3)
    differences = errors[:, 0] - errors[:, 1]
    assert found.value[0, 1] == pytest.approx(math.log(100 / 110) + differences.mean())
    half = stats.t.ppf(0.975, 2) * differences.std(ddof=1) * math.sqrt(1 + 1 / 3)
    assert found.half[0, 1] == pytest.approx(half)
    assert found.value[0, 2] == pytest.approx(math.log(100 / 120) - 0.03)
    assert found.half[0, 2] == found.half[1, 2] == 0.3  # one workload has both: the floor
    assert found.value[1, 0] == -found.value[0, 1]


def test_groups_of_one_workload_are_one_piece_of_evidence() -> None:
    errors = np.array([[0.02, 0.00], [0.04, 0.00], [-0.01, 0.00], [np.nan, 0.5]])
    found = gaps_of_predictions([100.0, 100.0], errors, 0.3, ["a", "a", "b", "c"])
    alone = gaps_of_predictions([100.0, 100.0], np.array([[0.03, 0.0], [-0.01, 0.0]]), 0.3)
    assert found.value[0, 1] == pytest.approx(alone.value[0, 1])
    assert found.half[0, 1] == pytest.approx(alone.half[0, 1])
    again = gaps_of_predictions([100.0, 100.0], errors[:2], 0.3, ["a", "a"])
    assert again.half[0, 1] == 0.3  # one workload run twice says nothing about another one


def test_pooled_intervals_are_those_of_a_two_way_analysis() -> None:
    rng = np.random.default_rng(5)
    rounds = 100 * rng.lognormal(0, 0.3, (2, 1)) * rng.lognormal(0, 0.02, (1, 6)) * rng.lognormal(0, 0.01, (2, 6))
    logs = np.log(rounds)
    # of two rounds the residual is half the difference from the mean difference
    d = logs[0] - logs[1]
    spread = math.sqrt(((d - d.mean()) ** 2).sum() / 2 / 5)
    assert pooled_half(rounds) == pytest.approx(stats.t.ppf(0.975, 5) * spread)


def test_coverage_of_paired_predictions_is_what_it_says() -> None:
    """Errors of eleven workloads, the true difference of a twelfth: 95 % of intervals hold it."""
    rng = np.random.default_rng(8)
    inside = 0
    for _ in range(400):
        errors = rng.normal(0.01, 0.02, (12, 2))
        found = gaps_of_predictions([100.0, 100.0], errors[:11], floor=1.0)
        inside += abs((errors[11, 0] - errors[11, 1]) - found.value[0, 1]) <= found.half[0, 1]
    assert 0.92 <= inside / 400 <= 0.98
