"""Search by a surrogate: learn from what was timed, try what looks best or is worth knowing, now and then only
among the neighbours of the best.

1. A few configurations at random, after the given ones. (Spread as far apart as can be they lie at the ends of every
   parameter, where little is learned of what lies between.)
2. Trees are fitted to log time, cut off above a quantile of the sample. The first few trials count as they are: which
   values are bad is most of what they say. Later bad is bad enough, differences among the good ones are what matters,
   and the quantile falls to the median. What could not be timed counts as bad, so that the surrogate learns where
   failures lie.
3. The candidate with the least `mean − k · deviation` is tried next, k drawn anew from an exponential law, so that both
   greedy and curious picks occur. With a fixed chance candidates are only the neighbours of the best three.

Fitted again when the sample has grown by a twentieth. No constant here was fitted to one space.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from kvbench.tune.trees import fit, predict

if TYPE_CHECKING:
    from kvbench.tune.space import Space

SAMPLE = 10
"""Random configurations at first"""
TREES = 24
CURIOSITY = 2.0
"""Mean of k"""
NEAR = 0.3
"""Chance that only neighbours of the best are looked at"""
BEST = 3
CUT_QUANTILE = 0.5
CUT_FROM, CUT_UNTIL = 20, 50
"""Trials between which the quantile falls from 1 to `CUT_QUANTILE`"""
GROWTH = 0.05
CANDIDATES = 2000


class Guided:
    """See the head of this file."""

    def __init__(self, space: Space, seed: int, first: tuple[int, ...] = ()) -> None:
        self._space = space
        self._random = np.random.default_rng(seed)
        self._is_tried = np.zeros(len(space), dtype=bool)
        self._places: list[int] = []
        self._times: list[float] = []
        self._coming = list(dict.fromkeys([*first, *self._sample()]))
        self._neighbours: dict[int, NDArray[np.int64]] = {}

    def ask(self) -> int | None:
        if not self._coming:
            self._coming = self._choose()
        if not self._coming:
            return None
        place = self._coming.pop(0)
        self._is_tried[place] = True
        return place

    def tell(self, place: int, time_s: float | None) -> None:
        self._places.append(place)
        self._times.append(time_s if time_s is not None and 0 < time_s < np.inf else np.inf)

    def _sample(self) -> list[int]:
        chosen: list[int] = self._random.permutation(len(self._space))[:SAMPLE].tolist()
        return chosen

    def _choose(self) -> list[int]:
        """The next few places, from one fit."""
        left = np.flatnonzero(~self._is_tried)
        if not len(left):
            return []
        times = np.array(self._times)
        if not np.isfinite(times).any():
            return [int(self._random.choice(left))]
        near = self._near_the_best(times)
        if len(left) > CANDIDATES:
            left = np.union1d(self._random.choice(left, CANDIDATES, replace=False), near)
        return self._least(left, np.isin(left, near), self._fitted(times, left))

    def _near_the_best(self, times: NDArray[np.float64]) -> NDArray[np.int64]:
        found = [np.zeros(0, dtype=np.int64)]
        order = np.argsort(times, kind="stable")
        for at in order[np.isfinite(times[order])][:BEST].tolist():
            place = self._places[at]
            if place not in self._neighbours:
                self._neighbours[place] = self._space.neighbours(place)
            found.append(self._neighbours[place])
        near = np.unique(np.concatenate(found))
        return near[~self._is_tried[near]]

    def _fitted(
        self, times: NDArray[np.float64], candidates: NDArray[np.int64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Predicted mean and deviation of the candidates' log time."""
        highest = float(np.quantile(times[np.isfinite(times)], cut_quantile(len(times))))
        y = np.log(np.minimum(times, highest))
        if y.min() == y.max():  # as after one success: where the failures lie is all that there is to learn
            y = np.isinf(times).astype(np.float64)
        y = (y - y.min()) / (y.std() + 1e-12)
        x = self._space.features(self._places)
        forest = fit(x, y, trees=TREES, tries=x.shape[1], seed=int(self._random.integers(1 << 30)))
        return predict(forest, self._space.features(candidates))

    def _least(
        self,
        candidates: NDArray[np.int64],
        is_near: NDArray[np.bool_],
        predicted: tuple[NDArray[np.float64], NDArray[np.float64]],
    ) -> list[int]:
        mean, deviation = predicted
        chosen: list[int] = []
        for _ in range(min(max(1, int(len(self._places) * GROWTH)), len(candidates))):
            promise = mean - self._random.exponential(CURIOSITY) * deviation
            promise += 1e-9 * self._random.random(len(promise))
            if self._random.random() < NEAR and is_near.any():
                promise = np.where(is_near, promise, np.inf)
            at = int(np.argmin(promise))
            chosen.append(int(candidates[at]))
            mean[at], is_near[at] = np.inf, False
        return chosen


def cut_quantile(trials: int) -> float:
    """Times above this quantile of those so far count as equal."""
    fallen = (trials - CUT_FROM) / (CUT_UNTIL - CUT_FROM)
    return 1 - (1 - CUT_QUANTILE) * min(1.0, max(0.0, fallen))
