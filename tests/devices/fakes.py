"""A machine and a management library of our own making."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from kvbench.devices.host import Host


class NvmlError(Exception):
    """What the library raises."""


class FakeNvml:
    """Stands in for `pynvml`. `failing` names functions that raise; after `vanish_after` calls every one does.
    A value that can be called is asked anew for every reading."""

    NVML_CLOCK_SM = 1
    NVML_CLOCK_MEM = 2
    NVML_TEMPERATURE_GPU = 0
    NVML_NVLINK_MAX_LINKS = 4

    def __init__(
        self, gpus: int = 1, name: str = "NVIDIA H200", failing: set[str] | None = None, vanish_after: int = 10**9,
        **values: Any,
    ) -> None:  # fmt: skip
        self.calls = 0
        self.opened = 0
        self._failing = failing or set()
        self._vanish_after = vanish_after
        self._values: dict[str, Any] = {
            "nvmlInit": None,
            "nvmlShutdown": None,
            "nvmlDeviceGetCount": gpus,
            "nvmlDeviceGetHandleByIndex": "handle",
            "nvmlDeviceGetName": name,
            "nvmlDeviceGetUUID": b"GPU-1234",
            "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=143_771 << 20, used=1 << 30, free=1),
            "nvmlDeviceGetNumGpuCores": 132 * 128,
            "nvmlDeviceGetCudaComputeCapability": (9, 0),
            "nvmlSystemGetDriverVersion": "570.1",
            "nvmlSystemGetCudaDriverVersion": 12080,
            "nvmlDeviceGetMigMode": [0, 0],
            "nvmlDeviceGetEccMode": [1, 1],
            "nvmlDeviceGetEnforcedPowerLimit": 700_000,
            "nvmlDeviceGetPowerManagementDefaultLimit": 700_000,
            "nvmlDeviceGetPersistenceMode": 1,
            "nvmlDeviceGetComputeMode": 0,
            "nvmlDeviceGetApplicationsClock": 1980,
            "nvmlDeviceGetMaxClockInfo": 1980,
            "nvmlDeviceGetClockInfo": 345,
            "nvmlDeviceGetTemperature": 40,
            "nvmlDeviceGetPowerUsage": 90_000,
            "nvmlDeviceGetCurrentClocksThrottleReasons": 1,
            "nvmlDeviceGetComputeRunningProcesses": [],
            "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=0, memory=0),
            "nvmlDeviceGetVbiosVersion": "96.00",
            "nvmlDeviceGetMaxPcieLinkGeneration": 5,
            "nvmlDeviceGetMaxPcieLinkWidth": 16,
            "nvmlDeviceGetCurrPcieLinkGeneration": 5,
            "nvmlDeviceGetCurrPcieLinkWidth": 16,
            "nvmlDeviceGetNvLinkState": 1,
            **values,
        }

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("nvml") or name not in self._values:
            raise AttributeError(name)
        return lambda *_: self._call(name)

    def _call(self, name: str) -> Any:
        self.calls += 1
        self.opened += {"nvmlInit": 1, "nvmlShutdown": -1}.get(name, 0)
        if name in self._failing or self.calls > self._vanish_after:
            raise NvmlError(name)
        value = self._values[name]
        return value() if callable(value) else value


def fake_host(root: Path, *, logical: int = 2, threads_per_core: int = 1, files: dict[str, str] | None = None) -> Host:
    """A machine with two cores and 8 GiB under `root`, plus the given system files."""
    _write(root, "proc/cpuinfo", "processor : 0\nmodel name : Testium 9000\nflags : fpu avx2 ht\n")
    _write(root, "proc/meminfo", "MemTotal: 8388608 kB\nMemAvailable: 4194304 kB\nSwapTotal: 0 kB\nSwapFree: 0 kB\n")
    for cpu in range(logical):
        topology = f"sys/devices/system/cpu/cpu{cpu}/topology"
        _write(root, f"{topology}/physical_package_id", "0")
        _write(root, f"{topology}/core_id", str(cpu // threads_per_core))
    for path, text in (files or {}).items():
        _write(root, path, text)
    return Host(root=root, affinity=frozenset(range(logical)))


def _write(root: Path, path: str, text: str) -> None:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text + "\n")
