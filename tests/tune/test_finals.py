"""Choosing among finalists, and leaving the race: by numbers made here, without any kernel."""

from __future__ import annotations

import numpy as np
import pytest

from kvbench.tune.finals import choose, finalists
from kvbench.tune.racing import race

CONFIGURATIONS = [{"a": a, "b": b} for a, b in ((1, 1), (1, 2), (2, 2), (2, 1), (3, 3))]


def rounds(gains: list[float], sd: float, count: int, seed: int) -> list[list[float | None]]:
    """Seconds of finalists that are `gains` times as quick as the default, in processes that differ as a whole."""
    random = np.random.default_rng(seed)
    process = np.exp(random.normal(0, 0.1, (count, 1)))
    noise = np.exp(random.normal(0, sd, (count, len(gains))))
    return (1e-3 * process * noise / np.array(gains)).tolist()


def test_of_equal_configurations_the_default_is_beaten_in_fewer_than_one_of_twenty() -> None:
    """What choosing the best of eight by one pass does nearly always."""
    nine = [{"a": a} for a in range(9)]
    wins = sum(not choose(rounds([1.0] * 9, 0.03, 8, seed), nine).is_default for seed in range(400))  # type: ignore[union-attr]
    assert wins <= 20


def test_a_clear_gain_wins_and_its_interval_holds_the_truth() -> None:
    held = 0
    for seed in range(200):
        choice = choose(rounds([1.0, 1.0, 1.1], 0.02, 8, seed), CONFIGURATIONS[:3])
        assert choice is not None
        assert choice.place == 2
        held += choice.low <= -np.log(1.1) <= choice.high
    assert held >= 190


def test_ties_go_to_the_fewest_differences_from_the_default_then_to_the_first() -> None:
    exact = [[1e-3 / gain * (1 + 1e-4 * r) for gain in (1.0, 1.2001, 1.2002, 1.2, 1.2003)] for r in range(6)]
    choice = choose(exact, CONFIGURATIONS)
    assert choice is not None
    assert choice.place == 4, "differences of less than 1 % that are certain are no ties"
    noisy = rounds([1.0, 1.2, 1.203, 1.2, 1.204], 0.004, 8, seed=5)
    choice = choose(noisy, CONFIGURATIONS)
    assert choice is not None
    assert choice.place == 1
    assert set(choice.tied) == {2, 3, 4}


def test_a_finalist_that_failed_once_cannot_win_and_without_the_default_nobody_can() -> None:
    found = rounds([1.0, 1.5, 1.2], 0.005, 6, seed=1)
    found[3][1] = None
    choice = choose(found, CONFIGURATIONS[:3])
    assert choice is not None
    assert choice.place == 2
    assert choose([[None, 1e-3, 1e-3]] * 6, CONFIGURATIONS[:3]) is None
    assert choose(found[:1], CONFIGURATIONS[:3]) is None


def test_finalists_are_the_default_the_best_eight_and_whatever_is_near() -> None:
    spread = {place: 1.0 + 0.1 * place for place in range(15)}
    assert finalists(spread, default=14) == [14, *range(8)]
    near = {place: 1.0 + 0.001 * place for place in range(15)}
    assert finalists(near, default=3) == [3, *(place for place in range(15) if place != 3)]
    assert finalists({7: 1.0}, default=7) == [7]


@pytest.mark.parametrize(
    ("quickest", "calls", "dropped"), [(1.5, 3, True), (1.1, 9, True), (1.03, 27, True), (1.0, 27, False)]
)
def test_slow_configurations_leave_the_race_and_like_ones_stay(quickest: float, calls: int, dropped: bool) -> None:
    raced = race(lambda count: [quickest] * count, best_s=1.0)
    assert raced is not None
    assert (len(raced.times), raced.is_dropped) == (calls, dropped)


def test_one_quick_call_keeps_a_noisy_configuration_in_the_race() -> None:
    raced = race(lambda count: [1.0, *[3.0] * (count - 1)], best_s=1.0)
    assert raced is not None
    assert not raced.is_dropped
    assert raced.median == 3.0


def test_a_failure_while_timing_ends_the_race() -> None:
    assert race(lambda count: None if count == 6 else [1.0] * count, best_s=None) is None
