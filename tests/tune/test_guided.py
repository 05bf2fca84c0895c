"""The guided search: what holds in every space, degenerate ones included, and a bar that luck does not reach."""

from __future__ import annotations

from itertools import pairwise
from math import comb

import numpy as np
import pytest

from kvbench.tune.guided import SAMPLE, Guided, cut_quantile
from kvbench.tune.recorded import Recording
from kvbench.tune.replay import play, replay
from kvbench.tune.space import Space
from tests.tune.spaces import valley

SPACES = {
    "one configuration": Space.of({"a": (7,)}),
    "one parameter": Space.of({"a": tuple(range(37))}),
    "five": Space.of({"a": (1, 2, 4, 8, 16)}),
    "text and switches": Space.of({"a": ("x", "y", "z"), "b": (True, False), "c": ("u", "v", "w")}),
    "negative and zero": Space.of({"a": (-2.5, 0, 3), "b": (0.1, 0.2, 0.3, 0.4), "c": (0, 1)}),
    "constrained": Space.of({"a": tuple(range(1, 9)), "b": tuple(range(1, 9))}, [lambda c: c["a"] * c["b"] == 8]),
    "rules in a corner": Space.of({"a": tuple(range(8)), "b": tuple(range(8))}, [lambda c: c["a"] + c["b"] < 5]),
}
TIMES = {
    "constant": lambda place: 1.0,
    "all fail": lambda place: None,
    "one in three fails": lambda place: None if place % 3 == 0 else 1.0 + place,
    "all but one fail": lambda place: 1.0 if place == 0 else None,
    "far apart": lambda place: 10.0 ** (place % 30 - 15),
}


@pytest.mark.parametrize("times", TIMES)
@pytest.mark.parametrize("name", SPACES)
def test_every_configuration_is_tried_once_and_then_none(name: str, times: str) -> None:
    space, seconds = SPACES[name], TIMES[times]
    first = (len(space) - 1, 0, len(space) - 1)
    search, tried = Guided(space, seed=1, first=first), []
    while (place := search.ask()) is not None:
        tried.append(place)
        search.tell(place, seconds(place))
    assert sorted(tried) == list(range(len(space)))
    assert tried[: len(set(first))] == list(dict.fromkeys(first))
    assert search.ask() is None


@pytest.mark.parametrize("times", TIMES)
def test_a_seed_gives_one_search_and_another_seed_another(times: str) -> None:
    space, seconds = SPACES["text and switches"], TIMES[times]

    def order(seed: int) -> list[int]:
        search, tried = Guided(space, seed), []
        while (place := search.ask()) is not None:
            tried.append(place)
            search.tell(place, seconds(place))
        return tried

    assert order(4) == order(4) != order(5)


def test_many_places_may_be_asked_for_before_the_first_time_comes() -> None:
    """As when several devices time at once."""
    space = SPACES["one parameter"]
    search = Guided(space, seed=2)
    asked = [search.ask() for _ in range(len(space))]
    assert sorted(place for place in asked if place is not None) == list(range(len(space)))
    assert search.ask() is None


def fickle(seed: int = 0) -> Recording:
    """2,401 configurations: best is a = 6 with b = c and small d; every third fails, at random or for its size."""
    space = Space.of({name: tuple(range(1, 8)) for name in "abcd"})
    random = np.random.default_rng(seed)
    a, b, c, d = space.levels.T + 1.0
    times = 1 + 0.3 * (a - 6) ** 2 + 0.2 * (b - c) ** 2 + 0.1 * d + 0.05 * random.random(len(space))
    times[(a + b > 11) | (c * d > 30) | (random.random(len(space)) < 0.2)] = np.inf
    return Recording("fickle", space, times, "time")


@pytest.mark.parametrize("recording", [valley(), fickle()], ids=lambda r: r.name)
def test_the_best_half_per_cent_is_found_more_often_than_luck_could(recording: Recording) -> None:
    """A random search of n trials has one of the best m with probability p = 1 − C(N − m, n) / C(N, n). So many of 12
    seeds as are asked for here come with a probability below one in a million by luck."""
    size, best, trials, seeds = len(recording.space), max(2, len(recording.space) // 200), 60, 12
    p = 1 - comb(size - best, trials) / comb(size, trials)
    needed = next(k for k in range(seeds + 1) if _at_least(k, seeds, p) < 1e-6)
    limit = np.sort(recording.times)[best - 1]
    found = sum(play(recording, "guided", seed, trials).min() <= limit for seed in range(seeds))
    assert found >= needed <= seeds


def _at_least(k: int, n: int, p: float) -> float:
    return sum(comb(n, i) * p**i * (1 - p) ** (n - i) for i in range(k, n + 1))


def test_a_space_of_constant_times_has_no_score_and_does_not_warn() -> None:
    space = SPACES["constrained"]
    with np.errstate(all="raise"):
        found = replay(Recording("flat", space, np.ones(len(space)), "time"), "guided", range(3))
    assert np.isnan(found.score)


def test_a_tiny_space_has_a_score_although_random_search_ends_at_its_optimum() -> None:
    """Expected is the mean over all subsets of the least; after five of five there is nothing to gain."""
    recording = Recording("tiny", SPACES["five"], np.array([3.0, 2.0, 1.0, 2.0, 3.0]), "time")
    found = replay(recording, "exhaustive", range(2))
    expected, reached = np.array([2.2, 1.7, 1.4, 1.2]), np.array([3.0, 2.0, 1.0, 1.0])
    assert found.evaluations == 5
    assert found.score == pytest.approx(float(((expected - reached) / (expected - 1)).mean()))


def test_the_first_sample_is_drawn_evenly_from_what_is_allowed() -> None:
    """Not from the ends of the parameters: of 37 places each is among the first of 300 seeds as often as chance has it
    (mean 300 · n / 37, six standard deviations)."""
    space, seeds = SPACES["one parameter"], 300
    counts = np.zeros(len(space))
    for seed in range(seeds):
        search = Guided(space, seed)
        first = [search.ask() for _ in range(SAMPLE)]
        assert len(set(first)) == SAMPLE
        counts[first] += 1
    share = SAMPLE / len(space)
    assert (np.abs(counts - seeds * share) < 6 * np.sqrt(seeds * share * (1 - share))).all()


@pytest.mark.parametrize("nothing", [float("nan"), float("inf"), 0.0, -1.0])
def test_what_is_no_time_is_a_failure(nothing: float) -> None:
    """The logarithm of one such time would be the end of the surrogate."""
    space = SPACES["one parameter"]

    def order(failed: float | None) -> list[int]:
        search, tried = Guided(space, seed=6), []
        while (place := search.ask()) is not None:
            tried.append(place)
            search.tell(place, failed if place % 3 == 0 else 1.0 + abs(place - 22))
        return tried

    assert order(nothing) == order(None)


def test_where_failures_lie_is_learned_although_all_that_works_is_equally_fast() -> None:
    """One corner of 48 among 1,728 configurations works. So many of 120 trials are in it with a probability below one
    in a million by luck (hypergeometric)."""
    space = Space.of({name: tuple(range(12)) for name in "abc"})
    works = np.array([a < 4 and b < 4 and c > 8 for a, b, c in space.configurations])
    size, good, trials = len(space), int(works.sum()), 120

    def at_least(k: int) -> float:
        ways = [comb(good, i) * comb(size - good, trials - i) for i in range(k, min(good, trials) + 1)]
        return sum(ways) / comb(size, trials)

    needed = next(k for k in range(good) if at_least(k) < 1e-6)
    found = []
    for seed in range(6):
        search, count = Guided(space, seed), 0
        for _ in range(trials):
            place = search.ask()
            assert place is not None
            search.tell(place, 1.0 if works[place] else None)
            count += int(works[place])
        found.append(count)
    assert np.median(found) >= needed


def test_no_time_is_cut_off_at_first_and_the_worse_half_later() -> None:
    quantiles = [cut_quantile(trials) for trials in range(1, 400)]
    assert quantiles[0] == 1
    assert quantiles[-1] == 0.5
    assert all(late <= early for early, late in pairwise(quantiles))
    assert cut_quantile(35) == pytest.approx(0.75)
