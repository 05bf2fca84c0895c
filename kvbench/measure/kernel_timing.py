"""One call timed until it is known well enough: the first launch dropped, warm-up until stationary, then the window."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kvbench.measure.bimodal import two_modes
from kvbench.measure.core_speed import CoreSpeed, Probed
from kvbench.measure.precision import MIN_CALLS, StoppingRule, half_width, median_interval
from kvbench.measure.stationary import is_stationary, lag1
from kvbench.measure.warnings import RowWarning

if TYPE_CHECKING:
    from kvbench.measure.timers import Call, Timer

WARMUP_CAP_S = 3.0
CURVE_POINTS = 64
SHARED_LIMIT = 0.5
"""Share of calls on a shared core above which a row says so"""


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
    """The window: device and host time of the calls that count, its wall time, and the share of calls that do not
    because the core was shared then (`core_speed.py`; None where nobody looked)."""

    device_s: NDArray[np.float64]
    host_s: NDArray[np.float64]
    window_s: float
    shared_share: float | None = None

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
            "core_shared_share": self.shared_share,
        }
        return row, [*self._imprecise(width, rule), *self._bimodal(), *self._shared()]

    def _imprecise(self, width: float, rule: StoppingRule) -> list[RowWarning]:
        if width <= rule.precision:
            return []
        reached = width if np.isfinite(width) else None
        numbers = {"reached": reached, "wanted": rule.precision, "calls": len(self.device_s), "window_s": self.window_s}
        return [RowWarning("imprecise", numbers)]

    def _shared(self) -> list[RowWarning]:
        if self.shared_share is None or self.shared_share <= SHARED_LIMIT:
            return []
        numbers = {"share": self.shared_share, "limit": SHARED_LIMIT, "calls": len(self.device_s)}
        return [RowWarning("core_shared", numbers)]

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


def time_calls(timer: Timer, call: Call, rule: StoppingRule, core: CoreSpeed | None = None) -> Timed:
    """Call until the rule is satisfied by the calls that count and by their time; with `core`, those on a shared core
    do not count, as long as there are enough others."""
    device: list[float] = []
    host: list[float] = []
    probed = None if core is None else Probed(core)
    start = time.perf_counter()
    elapsed, look = 0.0, 0
    while True:
        timing = timer(call)
        device.append(timing.device_s)
        host.append(timing.host_s)
        if probed is not None:
            probed.after_call()
        elapsed = time.perf_counter() - start
        if len(device) >= look or elapsed >= rule.max_time_s:
            shared = np.zeros(len(device), dtype=np.bool_) if probed is None else probed.slow()
            counted = np.asarray(device)[~shared]
            over = rule.is_over(counted, elapsed * len(counted) / len(device))
            if over or (elapsed >= rule.max_time_s and len(device) >= MIN_CALLS):
                return _timed(np.asarray(device), np.asarray(host), elapsed, None if probed is None else shared)
            look = rule.next_look(len(device))


def _timed(
    device: NDArray[np.float64], host: NDArray[np.float64], window_s: float, shared: NDArray[np.bool_] | None
) -> Timed:
    if shared is None:
        return Timed(device, host, window_s)
    kept = ~shared if (~shared).sum() >= MIN_CALLS else np.ones(len(device), dtype=np.bool_)
    return Timed(device[kept], host[kept], window_s, float(shared.mean()))
