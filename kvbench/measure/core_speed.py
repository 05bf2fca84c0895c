"""Whether a CPU core runs at its own speed just now: a fixed piece of work timed between calls. Torch-free.

Another tenant of the same physical core (the other hardware thread, on a shared machine) slows both down, and no
counter tells: the hypervisor stole nothing and the clock stays what it was. On such a machine decode took 222 or
285 µs, for a quarter of a second to four seconds at a time, and a loop of fixed length 29 or 45 µs in the same moments.
What decides is that loop and never the times that are measured: choosing by these would be choosing the result.

It sees the core of the thread that calls. Of a call on several threads it sees one core.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

EVERY_S = 0.5e-3
"""Between two probes of a kernel's calls: they cost a sixteenth of the time, outside what is timed"""
STEPS_EVERY_S = 10e-3
"""Between two probes of an engine's steps: they cost 0.3 % of the time, inside what is timed, in every case alike"""
SLOW = 1.15
"""Over the usual time of a probe: the shared core's are 1.5 and more, a quiet one's nine in ten within 1.10"""
_USUAL = 0.05
"""Quantile of all probes that stands for the core by itself: it is alone for at least a twentieth of a process"""
_LOOPS = 1_000


class CoreSpeed:
    """Probes of one process. `clock` and `work` are replaced in tests."""

    def __init__(
        self, clock: Callable[[], float] = time.perf_counter, work: Callable[[], object] | None = None
    ) -> None:
        self._clock, self._work = clock, work or _loop
        self._probes: list[float] = []
        self._ended = float("-inf")

    def probe(self) -> float:
        """Seconds of the fixed work now."""
        start = self._clock()
        self._work()
        self._ended = self._clock()
        self._probes.append(self._ended - start)
        return self._probes[-1]

    def is_due(self, every_s: float) -> bool:
        """Whether the last probe is old."""
        return self._clock() - self._ended >= every_s

    def slow(self, probes: ArrayLike) -> NDArray[np.bool_]:
        """Which of these were taken on a core that was slower than it can be."""
        return np.asarray(probes) > SLOW * self.usual_s

    @property
    def usual_s(self) -> float:
        """What the work takes when the core is ours; infinite before the first probe."""
        return float(np.quantile(self._probes, _USUAL)) if self._probes else float("inf")


class Probed:
    """Which calls of a series lie between two probes of which one was slow."""

    def __init__(self, core: CoreSpeed, every_s: float = EVERY_S) -> None:
        self._core, self._every_s = core, every_s
        self._probes = [core.probe()]
        self._before: list[int] = []

    def after_call(self) -> None:
        """To be called after every call of the series."""
        self._before.append(len(self._probes) - 1)
        if self._core.is_due(self._every_s):
            self._probes.append(self._core.probe())

    @property
    def slow_share(self) -> float:
        """Share of the probes that were slow: of the time, as they are evenly spaced."""
        return float(self._core.slow(self._probes).mean())

    def slow(self) -> NDArray[np.bool_]:
        """Per call so far; the last ones, with no probe behind them yet, go by the one before."""
        slow = self._core.slow(self._probes)
        before = np.asarray(self._before, dtype=np.intp)
        after = np.minimum(before + 1, len(slow) - 1)
        return np.asarray(slow[before] | slow[after], dtype=np.bool_)


def _loop() -> int:
    total = 0
    for i in range(_LOOPS):
        total += i & 7
    return total
