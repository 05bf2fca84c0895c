"""What a surrogate sees of a space, against the loops that it means, and at what cost of memory."""

from __future__ import annotations

import tracemalloc
from math import log2

import numpy as np
import pytest

from kvbench.tune.space import Space


def test_features_are_ranks_then_logarithms_of_products_and_quotients() -> None:
    values = {"a": (1, 2, 4, 64), "b": (0.5, 3.0), "c": ("x", "y", "z"), "d": (-1, 0, 1), "e": (8, 32), "f": (5,)}
    space = Space.of(values, [lambda c: c["a"] != 4 or c["e"] == 8])
    for place in (0, 17, len(space) - 1):
        row = space.as_dict(place)
        expected = [values[name].index(row[name]) / max(1, len(values[name]) - 1) for name in values]  # type: ignore[arg-type]
        for one, other in ("ab", "ae", "be"):
            expected += [log2(row[one]) + log2(row[other]), log2(row[one]) - log2(row[other])]  # type: ignore[arg-type]
        assert space.features([place])[0].tolist() == pytest.approx(expected)
    assert space.features([]).shape == (0, 12)


def test_a_space_without_positive_numbers_has_ranks_only() -> None:
    space = Space.of({"a": ("x", "y"), "b": (True, False)})
    assert space.features([0, 3]).tolist() == [[0, 1], [1, 0]]


def test_features_of_a_few_of_many_configurations_are_not_those_of_all() -> None:
    """Twenty parameters have 400 features: 64 MB for these 20,000 configurations."""
    rows = np.random.default_rng(0).integers(1, 9, (20_000, 20)).tolist()
    space = Space(tuple("abcdefghijklmnopqrst"), tuple(dict.fromkeys(tuple(row) for row in rows)))
    tracemalloc.start()
    try:
        assert space.features(np.arange(100)).shape == (100, 400)
        assert tracemalloc.get_traced_memory()[1] < 25 << 20
    finally:
        tracemalloc.stop()
