"""The plain searches: every configuration in order, and in random order."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvbench.tune.space import Space


class Exhaustive:
    """All configurations in the space's order."""

    def __init__(self, space: Space, seed: int, first: tuple[int, ...] = ()) -> None:
        self._coming = iter(_each_once(first, range(len(space))))

    def ask(self) -> int | None:
        return next(self._coming, None)

    def tell(self, place: int, time_s: float | None) -> None:
        """Nothing is learned."""


class Random(Exhaustive):
    """All configurations in random order."""

    def __init__(self, space: Space, seed: int, first: tuple[int, ...] = ()) -> None:
        order = np.random.default_rng(seed).permutation(len(space)).tolist()
        self._coming = iter(_each_once(first, order))


def _each_once(*parts: Iterable[int]) -> list[int]:
    return list(dict.fromkeys(place for part in parts for place in part))
