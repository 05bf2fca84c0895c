"""Choosing: the best of a search, timed again in fresh processes, and only what beats the default beyond noise wins.

A time picked for being the least of many is too good by chance, so the search's own times choose who is measured again
and nothing else. A round is one fresh process in which every finalist is timed twice, in shuffled order; the value is
the logarithm of its time over the default's in the same process. Intervals are t intervals over rounds at 95 %, shared
among the finalists (Bonferroni), because the best of them is picked.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

LEAST = 8
"""Finalists besides the default, where there are so many"""
MOST = 20
NEAR = 1.03
"""Everything so near to the best time of the search is a finalist as well"""
TIE = math.log(1.01)
CONFIDENCE = 0.95
RULE = (
    "of configurations within 1 % whose intervals overlap: the default if it is among them, else the one that differs "
    "from the default in the fewest parameters, else the first in the space's order"
)


@dataclass(frozen=True, slots=True)
class Choice:
    """`place` in the list of finalists; log time over the default's with its interval; places that tied."""

    place: int
    mean: float
    low: float
    high: float
    tied: tuple[int, ...]
    time_s: float
    default_time_s: float

    @property
    def is_default(self) -> bool:
        return self.place == 0


def finalists(times: dict[int, float], default: int) -> list[int]:
    """Places in the space, the default first: the best `LEAST`, and what is within 3 % of the best up to `MOST`."""
    ranked = sorted(times, key=lambda place: (times[place], place))
    others = [place for place in ranked if place != default]
    limit = times[ranked[0]] * NEAR if ranked else 0.0
    near = sum(times[place] <= limit for place in others)
    return [default, *others[: min(MOST, max(LEAST, near))]]


def choose(rounds: Sequence[Sequence[float | None]], configurations: Sequence[dict[str, Any]]) -> Choice | None:
    """`rounds[r][i]` seconds of finalist i in process r, None where it failed; finalist 0 is the default.

    None when fewer than two rounds have a time of the default. A finalist that failed once cannot win."""
    usable = [row for row in rounds if row[0] is not None]
    if len(usable) < 2:
        return None
    whole = [i for i in range(len(configurations)) if all(row[i] is not None for row in usable)]
    logs = np.log(np.array([[row[i] for i in whole] for row in usable], dtype=np.float64))
    ratios = logs - logs[:, :1]
    means, half = ratios.mean(axis=0), _half_widths(ratios)
    at = _picked(means, half, whole, configurations)
    tied = tuple(whole[j] for j in _tied(means, half, at) if j != at)
    medians = np.exp(np.median(logs, axis=0))
    return Choice(
        whole[at],
        float(means[at]),
        float(means[at] - half[at]),
        float(means[at] + half[at]),
        tied,
        float(medians[at]),
        float(medians[0]),
    )


def _picked(
    means: NDArray[np.float64], half: NDArray[np.float64], whole: list[int], configurations: Sequence[dict[str, Any]]
) -> int:
    best = int(np.argmin(means))
    beats = [j for j in _tied(means, half, best) if means[j] + half[j] < 0]
    if 0 in _tied(means, half, best) or not beats:
        return 0
    default = configurations[0]
    return min(beats, key=lambda j: (_differences(configurations[whole[j]], default), whole[j]))


def _tied(means: NDArray[np.float64], half: NDArray[np.float64], at: int) -> list[int]:
    """Who cannot be told from finalist `at`, itself included."""
    return [
        j
        for j in range(len(means))
        if abs(means[j] - means[at]) <= TIE and abs(means[j] - means[at]) <= half[j] + half[at]
    ]


def _half_widths(ratios: NDArray[np.float64]) -> NDArray[np.float64]:
    from scipy.stats import t

    rounds, count = ratios.shape
    quantile = float(t.ppf(1 - (1 - CONFIDENCE) / 2 / max(1, count - 1), rounds - 1))
    return np.asarray(quantile * ratios.std(axis=0, ddof=1) / math.sqrt(rounds))


def _differences(one: dict[str, Any], other: dict[str, Any]) -> int:
    return sum(one[name] != other[name] for name in one)
