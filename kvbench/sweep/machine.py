"""The machine that a suite runs on: the one at hand, or the device that the virtual clock stands for."""

from __future__ import annotations

from dataclasses import dataclass

from kvbench.costmodel.profiles import DEFAULT_DEVICE, virtual_device
from kvbench.costmodel.rates import NamedRates, read_rates
from kvbench.costmodel.roofline import roofline
from kvbench.devices.detect import detect
from kvbench.devices.facts import Device
from kvbench.errors import CannotRunError
from kvbench.measure.memory import free_memory_bytes
from kvbench.spec.suite import MeasureSettings

_ENDLESS = 1 << 62


@dataclass(frozen=True, slots=True)
class Machine:
    """Where cases run: this machine, or under the virtual clock the device that `rates` stand for. A virtual device
    has all of its memory free, and as much host memory as anybody asks for."""

    device: Device
    rates: NamedRates | None = None

    @property
    def is_virtual(self) -> bool:
        return self.rates is not None

    @property
    def clock(self) -> str:
        return "virtual" if self.is_virtual else "wall"

    def free_bytes(self, kind: str) -> int:
        """Memory of a kind of device that a case may take."""
        if not self.is_virtual:
            return free_memory_bytes(kind)
        return self.device.memory_bytes if kind == self.device.kind else _ENDLESS


def find_machine(measure: MeasureSettings) -> Machine:
    """The machine a suite runs on; `CannotRunError` when it asks for CUDA and there is none."""
    if measure.clock == "wall":
        return Machine(find_device(measure.device))
    virtual = virtual_device(measure.virtual_device or DEFAULT_DEVICE)
    given = measure.cost_model
    return Machine(virtual.device, roofline(virtual) if given in (None, "roofline") else read_rates(str(given)))


def find_device(wanted: str) -> Device:
    """The real device; `CannotRunError` when the suite asks for CUDA and there is none."""
    device = detect()
    if wanted == "cuda" and device.kind != "cuda":
        raise CannotRunError("this suite wants a CUDA device and there is none here", hint="use -a measure.device=cpu")
    return detect("cpu") if wanted == "cpu" else device
