"""A case under observation: GPU and CPU read by a background thread, counters at both ends of a window. Torch-free."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Self

from kvbench.devices.host import Host
from kvbench.devices.nvml import open_nvml
from kvbench.measure.gpu_watch import GpuReading, GpuSensor, GpuUse, clock_is_steady, condense, find_handle
from kvbench.measure.host_watch import HostCounters, HostUse, cpu_clock_hz, difference, read_counters

GPU_INTERVAL_S, CPU_INTERVAL_S = 0.1, 0.5


@dataclass(slots=True)
class Observed:
    """What a window looked like from outside."""

    host: HostUse
    gpu: GpuUse | None
    cpu_clock_hz: float | None

    def columns(self, output_tokens: int | None = None) -> dict[str, Any]:
        """Case columns; energy per output token where there is an energy counter and tokens came out (M40)."""
        found: dict[str, Any] = {**self.host.columns(), "cpu_clock_hz": self.cpu_clock_hz}
        if self.gpu is not None:
            found |= self.gpu.columns()
            if self.gpu.energy_j is not None and output_tokens:
                found["energy_per_output_token_j"] = self.gpu.energy_j / output_tokens
        return found


@dataclass(slots=True)
class Window:
    """A stretch of time under observation; `observed` is there when it is over."""

    begun: HostCounters
    first_gpu: int
    first_clock: int
    _observed: Observed | None = field(default=None)

    @property
    def observed(self) -> Observed:
        if self._observed is None:
            raise RuntimeError("the window is still open")
        return self._observed


class Watch:
    """Open it around a case, a `window()` around what is measured.

    `device` cuda reads the GPU of that `uuid` as well. Without a library, a driver or a GPU there is nothing to read,
    and nothing stops. `host` and `nvml_module` are replaced in tests."""

    def __init__(
        self,
        device: str,
        uuid: str | None = None,
        *,
        host: Host | None = None,
        nvml_module: Any = None,
        interval_s: float | None = None,
    ) -> None:
        self._device, self._uuid, self._module = device, uuid, nvml_module
        self._host = host or Host()
        self._interval_s = interval_s or (GPU_INTERVAL_S if device == "cuda" else CPU_INTERVAL_S)
        self._sensor: GpuSensor | None = None
        self._stack = ExitStack()
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._gpu: list[GpuReading] = []
        self._clocks: list[float | None] = []

    def __enter__(self) -> Self:
        if self._device == "cuda":
            nvml = self._stack.enter_context(open_nvml(self._module))
            handle = find_handle(nvml, self._uuid) if nvml is not None else None
            self._sensor = None if nvml is None or handle is None else GpuSensor(nvml, handle, os.getpid())
        thread = threading.Thread(target=self._sample, name="watch", daemon=True)
        thread.start()
        self._stack.callback(thread.join)  # before the library is closed
        self._stack.callback(self._over.set)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def clock_is_steady(self) -> bool:
        """Whether the GPU's SM clock has settled; true where there is none to read."""
        return self._sensor is None or clock_is_steady(self._gpu)

    @contextmanager
    def window(self) -> Iterator[Window]:
        """Observe the block; what it raises passes through."""
        first_gpu, first_clock = len(self._gpu), len(self._clocks)
        self._read()
        window = Window(read_counters(self._host), first_gpu, first_clock)
        yield window
        used = difference(window.begun, read_counters(self._host), self._host.logical_cores())
        self._read()
        window._observed = Observed(used, self._gpu_use(window), self._clock(window))

    def _sample(self) -> None:
        while not self._over.wait(self._interval_s):
            self._read()

    def _read(self) -> None:
        """One reading of everything; the lock keeps the order of readings that of their times."""
        with self._lock:
            if self._sensor is not None:
                self._gpu.append(self._sensor.read())
            self._clocks.append(cpu_clock_hz(self._host))

    def _gpu_use(self, window: Window) -> GpuUse | None:
        return None if self._sensor is None else condense(self._gpu[window.first_gpu :])

    def _clock(self, window: Window) -> float | None:
        known = [hz for hz in self._clocks[window.first_clock :] if hz is not None]
        return sum(known) / len(known) if known else None
