"""Strategies ask for every configuration once, and the guided one needs few of them."""

from __future__ import annotations

import numpy as np
import pytest

from kvbench.errors import UsageError
from kvbench.tune.replay import play, replay
from kvbench.tune.score import best_so_far, budget, random_curve, score
from kvbench.tune.space import Space
from kvbench.tune.strategy import STRATEGIES, make_strategy
from tests.shared_data import shared_data
from tests.tune.spaces import valley


@pytest.mark.parametrize("name", sorted(STRATEGIES))
def test_a_search_tries_everything_once_and_then_ends(name: str) -> None:
    space = Space.of({"a": (1, 2, 3), "b": (0, 1), "c": ("x",)})
    search, tried = make_strategy(name, space, seed=3, first=(4,)), []
    while (place := search.ask()) is not None:
        tried.append(place)
        search.tell(place, None if place % 2 else 1.0 + place)
    assert tried[0] == 4
    assert sorted(tried) == list(range(6))


@pytest.mark.parametrize("name", sorted(STRATEGIES))
def test_a_seed_is_a_search(name: str) -> None:
    recording = valley()
    assert play(recording, name, 5, 60).tolist() == play(recording, name, 5, 60).tolist()


def test_a_search_in_which_everything_fails_goes_on_to_the_end() -> None:
    space = Space.of({"a": tuple(range(40))})
    search = make_strategy("guided", space, seed=0)
    count = 0
    while (place := search.ask()) is not None:
        search.tell(place, None)
        count += 1
    assert count == 40


def test_the_guided_search_is_far_better_than_random_on_a_space_it_never_saw() -> None:
    found = replay(valley(), "guided", range(8))
    assert found.score > 0.6
    assert found.shares[50] > 0.97


def test_random_search_scores_nothing() -> None:
    found = replay(valley(), "random", range(300))
    assert abs(found.score) < 4 * found.score_error + 0.02


def test_the_expectation_of_random_search_is_that_of_many_random_searches() -> None:
    recording = valley()
    slowest = recording.times[np.isfinite(recording.times)].max()
    random = np.random.default_rng(1)
    drawn = [best_so_far(random.permutation(recording.times)[:40], slowest) for _ in range(6000)]
    mean, error = np.mean(drawn, axis=0), np.std(drawn, axis=0) / np.sqrt(6000)
    assert (np.abs(random_curve(recording.times, 40) - mean) < 5 * error + 1e-9).all()


def test_finding_the_optimum_at_once_scores_one() -> None:
    recording = valley()
    evaluations = budget(recording)
    assert score(recording, np.full((3, evaluations), recording.best), evaluations) == pytest.approx(1.0)
    expected = random_curve(recording.times, evaluations)
    assert score(recording, expected[None], evaluations) == pytest.approx(0.0)


def test_the_budget_is_where_random_search_has_come_95_percent_of_the_way() -> None:
    recording = valley()
    good = recording.times[np.isfinite(recording.times)]
    target = np.median(good) - 0.95 * (np.median(good) - recording.best)
    evaluations = budget(recording)
    assert random_curve(recording.times, evaluations)[-1] <= target < random_curve(recording.times, evaluations - 1)[-1]


def test_neighbours_differ_in_one_parameter() -> None:
    space = Space.of({"a": (1, 2, 3), "b": (0, 1)}, [lambda c: not (c["a"] == 3 and c["b"] == 1)])
    assert len(space) == 5
    at = space.place[(1, 1)]
    assert {space.configurations[n] for n in space.neighbours(at).tolist()} == {(1, 0), (2, 1)}


def test_an_empty_space_is_refused() -> None:
    with pytest.raises(UsageError, match="no configuration"):
        Space.of({"a": (1, 2)}, [lambda c: False])


def test_an_unknown_strategy_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match="annealing"):
        make_strategy("annealing", valley().space, 0)


@pytest.mark.parametrize("name", ["convolution_RTX_3090", "pnpoly_RTX_3090"])
def test_the_guided_search_beats_random_on_recorded_spaces(name: str) -> None:
    """Few seeds: a smoke test; `benchmarks/search.py` measures with 200."""
    from kvbench.tune.recorded import read_recording

    recording = read_recording(shared_data(f"tuning_spaces/{name}.json.gz"))
    assert replay(recording, "guided", range(3)).score > 0.3
