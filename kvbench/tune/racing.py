"""When a configuration is slow enough to stop timing it.

A trial is timed in rungs of 3, 9 and 27 calls. After a rung it is dropped when even its quickest call took longer than
the best so far's median by more than the rung's margin: 20 %, 5 %, 2 %. Noise makes calls slower, hardly ever faster,
so the quickest of several is a cautious estimate. What is dropped keeps the median that it has, so a mistake costs the
search some knowledge and not the result: the best are measured again anyway.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass

RUNGS = ((3, 1.20), (9, 1.05), (27, 1.02))
"""Calls in all, and how much slower than the best a quickest call may be"""


@dataclass(frozen=True, slots=True)
class Raced:
    """All calls that were timed, seconds, and whether the race was left early."""

    times: list[float]
    is_dropped: bool

    @property
    def median(self) -> float:
        return statistics.median(self.times)


def race(more: Callable[[int], list[float] | None], best_s: float | None) -> Raced | None:
    """Time a configuration; `more(calls)` gives that many further times, or None when it failed meanwhile. `best_s` is
    the best median so far, None when there is none."""
    times: list[float] = []
    for calls, margin in RUNGS:
        found = more(calls - len(times))
        if found is None:
            return None
        times += found
        if best_s is not None and min(times) > best_s * margin:
            return Raced(times, True)
    return Raced(times, False)
