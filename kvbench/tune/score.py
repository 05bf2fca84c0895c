"""How good a search is on a recorded space, against random search (Willemsen et al. 2024).

With F(n) the mean over seeds of the best time after n evaluations, S(n) the expectation of the same for random search
without repeats, and the optimum of the space:

    P = mean over n of (S(n) − F(n)) / (S(n) − optimum)

over n = 1 … N, N the evaluations after which S has come 95 % of the way from the median to the optimum. 0 is random
search, 1 finds the optimum at once. Failed configurations cost an evaluation like any other; until something succeeds
the best is the slowest time of the space.
"""

from __future__ import annotations

from math import lgamma
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvbench.tune.recorded import Recording

Floats = NDArray[np.float64]
SHARE = 0.95


def random_curve(times: Floats, count: int) -> Floats:
    """`[count]` expected best of n = 1 … `count` draws without repeats, in closed form: the i-th best is the best of n
    with probability C(size − i − 1, n − 1) / C(size, n)."""
    size = len(times)
    ordered = np.sort(_finite(times))
    log_factorial = np.array([lgamma(at + 1) for at in range(size + 1)])
    behind = size - 1 - np.arange(size)
    curve = np.empty(count)
    for n in range(1, count + 1):
        can = behind[behind >= n - 1]
        ways = log_factorial[can] - log_factorial[can - n + 1] - log_factorial[n - 1]
        total = log_factorial[size] - log_factorial[n] - log_factorial[size - n]
        curve[n - 1] = float((np.exp(ways - total) * ordered[: len(can)]).sum())
    return curve


def budget(recording: Recording) -> int:
    """N: evaluations until random search has come 95 % of the way from the median to the optimum."""
    good = recording.times[np.isfinite(recording.times)]
    target = float(np.median(good)) - SHARE * (float(np.median(good)) - recording.best)
    low, high = 1, len(recording.times)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if random_curve(recording.times, middle)[-1] <= target else (middle + 1, high)
    return low


def best_so_far(times: Floats, slowest: float) -> Floats:
    """`[n]` the best of the first 1 … n evaluations; a failed one counts as the slowest."""
    return np.asarray(np.minimum.accumulate(np.where(np.isfinite(times), times, slowest)))


def score(recording: Recording, curves: Floats, evaluations: int) -> float:
    """P of `curves` `[seeds, at least evaluations]`, each best so far. Left out is n from which on random search has
    the optimum for certain (as in a space of a few configurations); NaN when that is all."""
    expected = random_curve(recording.times, evaluations)
    reached = curves[:, :evaluations].mean(axis=0)
    room = expected - recording.best
    is_open = room > 1e-9 * recording.best
    return float(((expected - reached)[is_open] / room[is_open]).mean()) if is_open.any() else float("nan")


def shares(recording: Recording, curves: Floats, at: Sequence[int]) -> dict[int, float]:
    """Evaluations → median over seeds of optimum / best so far."""
    return {n: float(np.median(recording.best / curves[:, n - 1])) for n in at if n <= curves.shape[1]}


def _finite(times: Floats) -> Floats:
    return np.where(np.isfinite(times), times, times[np.isfinite(times)].max())
