"""One call timed until it is known well enough: the first launch dropped, warm-up until stationary, then the window."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kvbench.measure.bimodal import two_modes
from kvbench.measure.precision import StoppingRule, half_width, median_interval
from kvbench.measure.stationary import is_stationary, lag1
from kvbench.measure.warnings import RowWarning

if TYPE_CHECKING:
    from kvbench.measure.timers import Call, Timer

WARMUP_CAP_S = 3.0
CURVE_POINTS = 64


@dataclass(slots=True)
class WarmUp:
    """`times` are the device's, of every call but the first, whose time is `first_s`."""

    first_s: float
    is_steady: bool = False
    times: list[float] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def calls(self) -> int:
        return len(self.times) + 1

    def warnings(self) -> list[RowWarning]:
        return [] if self.is_steady else [RowWarning("not_stationary", {"warmup_s": self.seconds})]

    def curve(self) -> dict[str, Any]:
        """The whole warm-up in at most `CURVE_POINTS` medians of equally many calls."""
        per_point = max(1, -(-len(self.times) // CURVE_POINTS))
        pieces = [self.times[at : at + per_point] for at in range(0, len(self.times), per_point)]
        points = [float(np.median(piece)) for piece in pieces]
        return {"first_s": self.first_s, "calls_per_point": per_point, "median_s": points}


@dataclass(slots=True)
class Timed:
    """The window: device and host time of every call, and the wall time of all of it."""

    device_s: NDArray[np.float64]
    host_s: NDArray[np.float64]
    window_s: float

    def metrics(self, rule: StoppingRule) -> tuple[dict[str, Any], list[RowWarning]]:
        """Columns that describe the times, and what to know about them."""
        values = self.device_s
        median = float(np.median(values))
        low, high = (float(end) if np.isfinite(end) else None for end in median_interval(values))
        width = half_width(values)
        row = {
            "iterations": len(values),
            "decode_s": median,
            "decode_mean_s": float(values.mean()),
            "decode_mad_s": float(np.median(np.abs(values - median))),
            "decode_host_s": float(np.median(self.host_s)),
            "decode_low_s": low,
            "decode_high_s": high,
            "precision_reached": width if np.isfinite(width) else None,
            "lag1_autocorrelation": lag1(values),
        }
        return row, [*self._imprecise(width, rule), *self._bimodal()]

    def _imprecise(self, width: float, rule: StoppingRule) -> list[RowWarning]:
        if width <= rule.precision:
            return []
        reached = width if np.isfinite(width) else None
        numbers = {"reached": reached, "wanted": rule.precision, "calls": len(self.device_s), "window_s": self.window_s}
        return [RowWarning("imprecise", numbers)]

    def _bimodal(self) -> list[RowWarning]:
        found = two_modes(self.device_s)
        return [] if found is None else [RowWarning("bimodal", found._asdict())]


def warm_up(timer: Timer, call: Call, clock_is_steady: Callable[[], bool] = lambda: True) -> WarmUp:
    """Call until the times, and the device's clock, are stationary, or for `WARMUP_CAP_S`. The first call (compilation,
    page faults) is dropped."""
    start = time.perf_counter()
    found = WarmUp(timer(call).device_s)
    while not found.is_steady and time.perf_counter() - start < WARMUP_CAP_S:
        found.times.append(timer(call).device_s)
        found.is_steady = is_stationary(found.times) and clock_is_steady()
    found.seconds = time.perf_counter() - start
    return found


def time_calls(timer: Timer, call: Call, rule: StoppingRule) -> Timed:
    """Call until the rule is satisfied."""
    device: list[float] = []
    host: list[float] = []
    start = time.perf_counter()
    elapsed, look = 0.0, 0
    while True:
        timing = timer(call)
        device.append(timing.device_s)
        host.append(timing.host_s)
        elapsed = time.perf_counter() - start
        if len(device) >= look or elapsed >= rule.max_time_s:
            if rule.is_over(device, elapsed):
                return Timed(np.asarray(device), np.asarray(host), elapsed)
            look = rule.next_look(len(device))
