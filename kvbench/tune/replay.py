"""A search strategy on a recorded space: the same code that tunes a device, with look-ups for launches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from kvbench.tune.score import best_so_far, budget, score, shares
from kvbench.tune.strategy import make_strategy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvbench.tune.recorded import Recording

SHOWN = (25, 50, 100, 200)


@dataclass(frozen=True, slots=True)
class Replayed:
    """One strategy on one space over several seeds; `shares` is evaluations → median share of the optimum."""

    space: str
    strategy: str
    configurations: int
    failed: int
    evaluations: int
    seeds: int
    score: float
    score_error: float
    """Standard error of the score over seeds"""
    shares: dict[int, float]


def replay(recording: Recording, strategy: str, seeds: Sequence[int], evaluations: int | None = None) -> Replayed:
    """Play the search once for each seed; `evaluations` None is the budget of the score."""
    scored = budget(recording) if evaluations is None else min(evaluations, len(recording.space))
    longest = min(max(scored, max(SHOWN)), len(recording.space))
    slowest = float(recording.times[np.isfinite(recording.times)].max())
    curves = np.array([best_so_far(play(recording, strategy, seed, longest), slowest) for seed in seeds])
    return played(recording, strategy, curves, scored)


def played(recording: Recording, strategy: str, curves: NDArray[np.float64], evaluations: int) -> Replayed:
    """What searches came to whose best so far is `curves` `[seeds, at least evaluations]`."""
    single = [score(recording, curve[None], evaluations) for curve in curves]
    return Replayed(
        space=recording.name,
        strategy=strategy,
        configurations=len(recording.space),
        failed=recording.failed,
        evaluations=evaluations,
        seeds=len(curves),
        score=score(recording, curves, evaluations),
        score_error=float(np.std(single, ddof=1) / np.sqrt(len(single))) if len(single) > 1 else float("nan"),
        shares=shares(recording, curves, SHOWN),
    )


def play(recording: Recording, strategy: str, seed: int, evaluations: int) -> NDArray[np.float64]:
    """`[evaluations]` times in the order of the search."""
    search = make_strategy(strategy, recording.space, seed)
    times: list[float] = []
    while len(times) < evaluations and (place := search.ask()) is not None:
        time = float(recording.times[place])
        search.tell(place, time if np.isfinite(time) else None)
        times.append(time)
    return np.array(times)
