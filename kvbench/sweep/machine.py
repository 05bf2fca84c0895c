"""The machine that a suite runs on: the one at hand, or the device that the virtual clock stands for."""

from __future__ import annotations

from dataclasses import dataclass

from kvbench.costmodel.fitted import FittedFile
from kvbench.costmodel.profiles import DEFAULT_DEVICE, virtual_device
from kvbench.costmodel.roofline import roofline
from kvbench.costmodel.sources import CostSource, read_cost_file
from kvbench.devices.detect import detect
from kvbench.devices.facts import Device
from kvbench.errors import CannotRunError, UsageError
from kvbench.measure.memory import free_memory_bytes
from kvbench.spec.suite import MeasureSettings

_ENDLESS = 1 << 62


@dataclass(frozen=True, slots=True)
class Machine:
    """Where cases run: this machine, or under the virtual clock the device that `cost` stands for. A virtual device
    has all of its memory free, and as much host memory as anybody asks for."""

    device: Device
    cost: CostSource | None = None

    @property
    def is_virtual(self) -> bool:
        return self.cost is not None

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
    given = measure.cost_model
    cost = None if given in (None, "roofline") else read_cost_file(str(given))
    if isinstance(cost, FittedFile):
        return Machine(_fitted_device(cost, measure.virtual_device), cost)
    virtual = virtual_device(measure.virtual_device or DEFAULT_DEVICE)
    return Machine(virtual.device, cost or roofline(virtual))


def _fitted_device(cost: FittedFile, named: str | None) -> Device:
    """A fitted model stands for the device that it was fitted on, and for no other."""
    if named not in (None, cost.device.name):
        raise UsageError(
            f"{cost.label} was fitted on {cost.device.name}, not on {named}", hint="leave --virtual-device out"
        )
    return cost.device


def find_device(wanted: str) -> Device:
    """The real device; `CannotRunError` when the suite asks for CUDA and there is none."""
    device = detect()
    if wanted == "cuda" and device.kind != "cuda":
        raise CannotRunError("this suite wants a CUDA device and there is none here", hint="use -a measure.device=cpu")
    return detect("cpu") if wanted == "cpu" else device
