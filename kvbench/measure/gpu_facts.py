"""What a GPU is set to, what surrounds it, and what it reads at this moment, by NVML."""

from __future__ import annotations

from typing import Any

from kvbench.devices.nvml import Nvml

REASONS = {
    0x1: "idle", 0x2: "application_clocks", 0x4: "sw_power_cap", 0x8: "hw_slowdown", 0x10: "sync_boost",
    0x20: "sw_thermal_slowdown", 0x40: "hw_thermal_slowdown", 0x80: "hw_power_brake", 0x100: "display_clocks",
}  # fmt: skip
"""NVML's clock event reasons by bit."""
HARMLESS = frozenset({"idle", "application_clocks", "display_clocks", "sync_boost"})
"""Those that hold nothing back which was not asked for"""

COMPUTE_MODES = {0: "default", 1: "exclusive_thread", 2: "prohibited", 3: "exclusive_process"}
ON_OFF = {0: "off", 1: "on"}


def gpu_controlled(nvml: Nvml, handle: Any) -> dict[str, Any]:
    """What must be equal for two runs to be comparable; None where the card does not tell."""
    total, _ = nvml.memory_bytes(handle)
    return {
        "name": _text(nvml.read("nvmlDeviceGetName", handle)),
        "uuid": _text(nvml.read("nvmlDeviceGetUUID", handle)),
        "sm_count": nvml.sm_count(handle),
        "compute_capability": nvml.compute_capability(handle),
        "memory_bytes": total,
        "mig": _mode(_first(nvml.read("nvmlDeviceGetMigMode", handle))),
        "mig_profile": _mig_profile(nvml, handle),
        "ecc": _mode(_first(nvml.read("nvmlDeviceGetEccMode", handle))),
        "power_limit_w": _scaled(nvml.read("nvmlDeviceGetEnforcedPowerLimit", handle), 1e-3),
        "default_power_limit_w": _scaled(nvml.read("nvmlDeviceGetPowerManagementDefaultLimit", handle), 1e-3),
        "application_sm_clock_hz": _clock(nvml, "nvmlDeviceGetApplicationsClock", handle, "NVML_CLOCK_SM"),
        "application_memory_clock_hz": _clock(nvml, "nvmlDeviceGetApplicationsClock", handle, "NVML_CLOCK_MEM"),
        "clocks_locked": clocks_locked(nvml, handle),
        "max_sm_clock_hz": _clock(nvml, "nvmlDeviceGetMaxClockInfo", handle, "NVML_CLOCK_SM"),
        "max_memory_clock_hz": _clock(nvml, "nvmlDeviceGetMaxClockInfo", handle, "NVML_CLOCK_MEM"),
        "persistence_mode": _mode(nvml.read("nvmlDeviceGetPersistenceMode", handle)),
        "compute_mode": _named(COMPUTE_MODES, nvml.read("nvmlDeviceGetComputeMode", handle)),
        "nvlinks": _nvlinks(nvml, handle),
    }


COMMON = {0: "same board", 10: "one switch", 20: "several switches", 30: "host bridge", 40: "NUMA node", 50: "system"}
"""NVML's levels of the nearest thing that two GPUs share."""


def topology(nvml: Nvml, handles: list[Any]) -> dict[str, str | None]:
    """`0-1` → what lies between the two GPUs, of every pair."""
    return {
        f"{one}-{two}": _named(COMMON, nvml.read("nvmlDeviceGetTopologyCommonAncestor", handles[one], handles[two]))
        for two in range(len(handles))
        for one in range(two)
    }


def gpu_noted(nvml: Nvml, handle: Any) -> dict[str, Any]:
    """Written down, and no reason to refuse a comparison."""
    return {
        "vbios": _text(nvml.read("nvmlDeviceGetVbiosVersion", handle)),
        "pcie_max_generation": _whole(nvml.read("nvmlDeviceGetMaxPcieLinkGeneration", handle)),
        "pcie_max_width": _whole(nvml.read("nvmlDeviceGetMaxPcieLinkWidth", handle)),
    }


def gpu_readings(nvml: Nvml, handle: Any) -> dict[str, Any]:
    """Differs from one moment to the next."""
    _, used = nvml.memory_bytes(handle)
    return {
        "sm_clock_hz": _clock(nvml, "nvmlDeviceGetClockInfo", handle, "NVML_CLOCK_SM"),
        "memory_clock_hz": _clock(nvml, "nvmlDeviceGetClockInfo", handle, "NVML_CLOCK_MEM"),
        "temperature_c": _temperature(nvml, handle),
        "power_w": _scaled(nvml.read("nvmlDeviceGetPowerUsage", handle), 1e-3),
        "throttle_reasons": throttle_reasons(nvml, handle),
        "memory_used_bytes": used,
        "process_ids": _process_ids(nvml, handle),
        "utilisation": _share(nvml.read("nvmlDeviceGetUtilizationRates", handle)),
        "pcie_generation": _whole(nvml.read("nvmlDeviceGetCurrPcieLinkGeneration", handle)),
        "pcie_width": _whole(nvml.read("nvmlDeviceGetCurrPcieLinkWidth", handle)),
    }


def energy_j(nvml: Nvml, handle: Any) -> float | None:
    """The energy counter, joules since the driver was loaded; None where the card has none."""
    return _scaled(nvml.read("nvmlDeviceGetTotalEnergyConsumption", handle), 1e-3)


def clocks_locked(nvml: Nvml, handle: Any) -> bool | None:
    """Whether someone set the clocks: application clocks off their default, or named as what holds them back now.

    The library has no reading for `nvidia-smi --lock-gpu-clocks`; on an idle card such a lock does not show.
    """
    now = _clock(nvml, "nvmlDeviceGetApplicationsClock", handle, "NVML_CLOCK_SM")
    default = _clock(nvml, "nvmlDeviceGetDefaultApplicationsClock", handle, "NVML_CLOCK_SM")
    reasons = throttle_reasons(nvml, handle)
    if reasons and "application_clocks" in reasons:
        return True
    return None if now is None or default is None else now != default


def throttle_reasons(nvml: Nvml, handle: Any) -> list[str] | None:
    """Names of what holds the clocks back now."""
    mask = _whole(nvml.read("nvmlDeviceGetCurrentClocksEventReasons", handle))
    if mask is None:
        mask = _whole(nvml.read("nvmlDeviceGetCurrentClocksThrottleReasons", handle))
    return None if mask is None else [name for bit, name in REASONS.items() if mask & bit]


def _clock(nvml: Nvml, reading: str, handle: Any, clock: str) -> float | None:
    return _scaled(nvml.read(reading, handle, nvml.constant(clock)), 1e6)


def _temperature(nvml: Nvml, handle: Any) -> int | None:
    return _whole(nvml.read("nvmlDeviceGetTemperature", handle, nvml.constant("NVML_TEMPERATURE_GPU")))


def _process_ids(nvml: Nvml, handle: Any) -> list[int] | None:
    found = nvml.read("nvmlDeviceGetComputeRunningProcesses", handle)
    if not isinstance(found, list | tuple):
        return None
    return sorted(pid for pid in (_whole(getattr(p, "pid", None)) for p in found) if pid is not None)


def _nvlinks(nvml: Nvml, handle: Any) -> int | None:
    """Links that are up; None where the card has no such reading."""
    links = range(_whole(nvml.constant("NVML_NVLINK_MAX_LINKS")) or 0)
    states = [_whole(nvml.read("nvmlDeviceGetNvLinkState", handle, link)) for link in links]
    known = [state for state in states if state is not None]
    return sum(known) if known else None


def _mig_profile(nvml: Nvml, handle: Any) -> str | None:
    """The slices of a partitioned GPU, as in `1g 16sm 9984MiB, 2g …`; None for a whole one."""
    found = []
    for index in range(min(_whole(nvml.read("nvmlDeviceGetMaxMigDeviceCount", handle)) or 0, 16)):
        part = nvml.read("nvmlDeviceGetMigDeviceHandleByIndex", handle, index)
        facts = None if part is None else nvml.read("nvmlDeviceGetAttributes_v2", part)
        names = ("gpuInstanceSliceCount", "multiprocessorCount", "memorySizeMB")
        slices, sms, megabytes = (_whole(getattr(facts, name, None)) for name in names)
        if slices is not None:
            found.append(f"{slices}g {sms}sm {megabytes}MiB")
    return ", ".join(sorted(found)) or None


def _share(rates: Any) -> float | None:
    return _scaled(getattr(rates, "gpu", None), 1e-2)


def _first(pair: Any) -> Any:
    """Of (current, pending)."""
    return pair[0] if isinstance(pair, list | tuple) and pair else None


def _mode(value: Any) -> str | None:
    return _named(ON_OFF, value)


def _named(names: dict[int, str], value: Any) -> str | None:
    whole = _whole(value)
    return None if whole is None else names.get(whole)


def _whole(value: Any) -> int | None:
    return int(value) if isinstance(value, int) and not isinstance(value, bool) else None


def _scaled(value: Any, scale: float) -> float | None:
    whole = _whole(value)
    return None if whole is None else whole * scale


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None
