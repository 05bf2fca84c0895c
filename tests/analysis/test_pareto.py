from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from kvbench.analysis.pareto import pareto_front

HIGH_LOW = (True, False)


def test_m38_only_strictly_non_dominated_points_are_on_the_front() -> None:
    """Ties in one value, equal points, dominated points, missing values."""
    points = [(10, 1.0), (10, 2.0), (9, 1.0), (10, 1.0), (12, 5.0), (8, 0.5), (None, 0.1), (99, math.nan)]
    assert pareto_front(points, HIGH_LOW) == [True, False, False, True, True, True, False, False]


def test_m38_a_missing_value_is_not_filled_in() -> None:
    """Without any complete point there is no front."""
    assert pareto_front([(1, None), (None, 2)], HIGH_LOW) == [False, False]
    assert pareto_front([], HIGH_LOW) == []


points = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(0, 4)), max_size=12)


@given(points)
def test_the_front_is_what_remains_when_each_point_removes_those_it_beats(found: list[tuple[int, int, int]]) -> None:
    front = pareto_front(found, (True, False, False))
    alive = set(range(len(found)))
    for a in found:
        alive -= {n for n, b in enumerate(found) if a[0] >= b[0] and a[1] <= b[1] and a[2] <= b[2] and a != b}
    assert {n for n, mark in enumerate(front) if mark} == alive
    assert any(front) == bool(found)
