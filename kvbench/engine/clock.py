"""Time as the engine sees it: seconds since the last restart."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """`now()` never runs backwards; `wait_until(t)` returns at or after `t`, at once when `t` has passed."""

    def restart(self) -> None:
        """The present becomes 0."""
        ...

    def now(self) -> float: ...

    def wait_until(self, t_s: float) -> None: ...


class VirtualClock:
    """Time that passes only when it is told to: a cost model says how long each step takes."""

    def __init__(self) -> None:
        self._now = 0.0

    def restart(self) -> None:
        self._now = 0.0

    def now(self) -> float:
        return self._now

    def wait_until(self, t_s: float) -> None:
        self._now = max(self._now, t_s)

    def advance(self, seconds: float) -> None:
        self._now += seconds


class WallClock:
    """The real device's time, by `perf_counter`."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        self._origin = time.perf_counter()

    def now(self) -> float:
        return time.perf_counter() - self._origin

    def wait_until(self, t_s: float) -> None:
        while (left := t_s - self.now()) > 0:
            time.sleep(left)
