"""What one GPU reads while a case runs, by NVML, and what a window of such readings says. Torch-free.

Sensors vanish, refuse and lie. A reading that no GPU can have is none; a counter that goes backwards, or stands while
power flows, gives no energy, and a warning says so.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from kvbench.devices.nvml import Nvml
from kvbench.measure.gpu_facts import HARMLESS, energy_j, gpu_readings
from kvbench.measure.warnings import RowWarning

_PLAUSIBLE = {
    "sm_clock_hz": (1.0, 1e10),
    "memory_clock_hz": (1.0, 1e11),
    "power_w": (0.0, 1e4),
    "temperature_c": (-40.0, 200.0),
    "memory_used_bytes": (0.0, 2.0**50),
    "energy_j": (0.0, 1e15),
}
CLOCK_TOLERANCE = 0.01
_CLOCK_READINGS = 3


@dataclass(frozen=True, slots=True)
class GpuReading:
    """One moment. None: no answer, or one that cannot be."""

    t_s: float
    sm_clock_hz: float | None = None
    memory_clock_hz: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    memory_used_bytes: float | None = None
    energy_j: float | None = None
    throttle_reasons: tuple[str, ...] | None = None
    foreign_processes: int | None = None

    @property
    def is_empty(self) -> bool:
        return self.sm_clock_hz is None and self.power_w is None and self.temperature_c is None

    @property
    def is_throttled(self) -> bool | None:
        return None if self.throttle_reasons is None else bool(set(self.throttle_reasons) - HARMLESS)


class GpuSensor:
    """Reads the GPU that the case runs on. `clock` and `pid` are replaced in tests."""

    def __init__(self, nvml: Nvml, handle: Any, pid: int, clock: Callable[[], float] = time.perf_counter) -> None:
        self._nvml, self._handle, self._pid, self._clock = nvml, handle, pid, clock

    def read(self) -> GpuReading:
        found = gpu_readings(self._nvml, self._handle) | {"energy_j": energy_j(self._nvml, self._handle)}
        numbers = {name: _plausible(found.get(name), *span) for name, span in _PLAUSIBLE.items()}
        reasons = found["throttle_reasons"]
        return GpuReading(
            self._clock(),
            **numbers,
            throttle_reasons=None if reasons is None else tuple(reasons),
            foreign_processes=_foreign(found["process_ids"], self._pid),
        )


def find_handle(nvml: Nvml, uuid: str | None) -> Any:
    """The GPU by its id, as the CUDA runtime tells it; the first one where nobody does. None without a GPU."""
    handles = nvml.handles()
    wanted = (uuid or "").removeprefix("GPU-").lower()
    for handle in handles if wanted else ():
        text = nvml.read("nvmlDeviceGetUUID", handle)
        if isinstance(text, str) and text.removeprefix("GPU-").lower() == wanted:
            return handle
    return handles[0] if handles else None


def clock_is_steady(readings: Sequence[GpuReading]) -> bool:
    """Whether the last SM clocks lie within 1 %; also true where the clock cannot be read."""
    clocks = [r.sm_clock_hz for r in readings if r.sm_clock_hz is not None]
    if readings and not clocks:
        return True
    last = clocks[-_CLOCK_READINGS:]
    return len(last) == _CLOCK_READINGS and max(last) - min(last) <= CLOCK_TOLERANCE * max(last)


@dataclass(frozen=True, slots=True)
class GpuUse:
    """The readings of a window condensed."""

    readings: int
    answered: int
    sm_clock_mean_hz: float | None
    sm_clock_min_hz: float | None
    memory_clock_mean_hz: float | None
    power_mean_w: float | None
    temperature_max_c: float | None
    gpu_memory_peak_bytes: float | None
    throttled_share: float | None
    throttle_reasons: tuple[str, ...]
    foreign_processes: int | None
    energy_j: float | None
    doubts: tuple[RowWarning, ...] = ()

    def columns(self) -> dict[str, float | int | None]:
        """The case columns of the same names."""
        names = (
            "sm_clock_mean_hz", "sm_clock_min_hz", "memory_clock_mean_hz", "power_mean_w", "temperature_max_c",
            "throttled_share", "energy_j",
        )  # fmt: skip
        peak = self.gpu_memory_peak_bytes
        return {n: getattr(self, n) for n in names} | {"gpu_memory_peak_bytes": None if peak is None else int(peak)}


def condense(readings: Sequence[GpuReading]) -> GpuUse:
    """`readings` in order; the first and the last were taken at the ends of the window."""
    throttled = [r.is_throttled for r in readings if r.is_throttled is not None]
    reasons = {reason for r in readings for reason in r.throttle_reasons or ()} - HARMLESS
    energy, doubts = _energy(readings)
    answered = sum(not r.is_empty for r in readings)
    if 0 < answered < len(readings):
        doubts.append(RowWarning("sensor_lost", {"answered": answered, "readings": len(readings)}))
    return GpuUse(
        readings=len(readings),
        answered=answered,
        sm_clock_mean_hz=_mean(r.sm_clock_hz for r in readings),
        sm_clock_min_hz=_extreme(min, (r.sm_clock_hz for r in readings)),
        memory_clock_mean_hz=_mean(r.memory_clock_hz for r in readings),
        power_mean_w=_mean(r.power_w for r in readings),
        temperature_max_c=_extreme(max, (r.temperature_c for r in readings)),
        gpu_memory_peak_bytes=_extreme(max, (r.memory_used_bytes for r in readings)),
        throttled_share=sum(throttled) / len(throttled) if throttled else None,
        throttle_reasons=tuple(sorted(reasons)),
        foreign_processes=max((r.foreign_processes for r in readings if r.foreign_processes is not None), default=None),
        energy_j=energy,
        doubts=tuple(doubts),
    )


def _energy(readings: Sequence[GpuReading]) -> tuple[float | None, list[RowWarning]]:
    """Last counter less first; None where it is missing at an end or cannot be trusted in between."""
    counts = [r.energy_j for r in readings if r.energy_j is not None]
    if len(readings) < 2 or not counts:
        return None, []
    fell = [(a, b) for a, b in itertools.pairwise(counts) if b < a]
    if fell:
        before, after = fell[0]
        return None, [RowWarning("energy_counter_odd", {"before_j": before, "after_j": after})]
    first, last = readings[0].energy_j, readings[-1].energy_j
    power = _mean(r.power_w for r in readings)
    seconds = readings[-1].t_s - readings[0].t_s
    if first is not None and last == first and power and power * seconds > 1.0:
        numbers = {"before_j": first, "after_j": last, "power_mean_w": power, "window_s": seconds}
        return None, [RowWarning("energy_counter_odd", numbers)]
    return (None if first is None or last is None else last - first), []


def _foreign(pids: list[int] | None, own: int) -> int | None:
    """Processes on the GPU that are not this one. In a container the library may number them otherwise: then one of
    them is taken for us."""
    if pids is None:
        return None
    return len([pid for pid in pids if pid != own]) if own in pids else max(0, len(pids) - 1)


def _plausible(value: Any, low: float, high: float) -> float | None:
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        return None
    return float(value) if low <= value <= high else None


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else None


def _extreme(pick: Callable[[list[float]], float], values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return pick(known) if known else None
