"""Every controlled variable of the machine, as the manifest keeps it.

Three classes: `controlled` must be equal for two runs to be compared, `environment` is noted, `volatile` differs
from one moment to the next and is never compared for equality. A key is always there; null means that the machine
does not tell. Imports neither torch nor numba.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Iterable
from typing import Any

from kvbench.devices.host import Host
from kvbench.devices.nvml import Nvml, open_nvml
from kvbench.measure import host_facts
from kvbench.measure.gpu_facts import gpu_controlled, gpu_noted, gpu_readings, topology
from kvbench.measure.software import checkout, location_variables, variables, versions


def capture(*, host: Host | None = None, nvml_module: Any = None) -> dict[str, dict[str, Any]]:
    """Read the machine now: `{"controlled": …, "environment": …, "volatile": …}`, all plain JSON values.

    Never raises for what cannot be read. `host` and `nvml_module` are replaced in tests.
    """
    machine = host or Host()
    with open_nvml(nvml_module) as nvml:
        handles = nvml.handles() if nvml else []
        return {
            "controlled": {
                "cpu": _cpu(machine),
                "gpus": [gpu_controlled(nvml, handle) for handle in handles] if nvml else [],
                "gpu_topology": topology(nvml, handles) if nvml else {},
                "driver": _driver(nvml),
                "python": host_facts.python_facts(),
                "versions": versions(),
                "variables": variables(),
                "kvbench": checkout(),
                "container": host_facts.container(machine),
            },
            "environment": {
                "host": _surroundings(machine),
                "gpus": [gpu_noted(nvml, handle) for handle in handles] if nvml else [],
                "variables": location_variables(),
            },
            "volatile": _volatile(machine, nvml, handles),
        }


def readings() -> dict[str, Any]:
    """Only what differs from one moment to the next: load, free memory, clocks, temperature, what holds clocks back."""
    with open_nvml() as nvml:
        return _volatile(Host(), nvml, nvml.handles() if nvml else [])


def _volatile(host: Host, nvml: Nvml | None, handles: list[Any]) -> dict[str, Any]:
    return {"host": _readings(host), "gpus": [gpu_readings(nvml, handle) for handle in handles] if nvml else []}


def ranges(cpus: Iterable[int]) -> str:
    """{0, 1, 2, 5} → `0-2,5`, as the kernel writes sets of CPUs."""
    text: list[str] = []
    ordered = sorted(cpus)
    start = 0
    for i, cpu in enumerate(ordered):
        if i + 1 == len(ordered) or ordered[i + 1] != cpu + 1:
            text.append(str(cpu) if start == i else f"{ordered[start]}-{cpu}")
            start = i + 1
    return ",".join(text)


def _cpu(host: Host) -> dict[str, Any]:
    status = host.text("proc/self/status") or ""
    return {
        "model": host.cpu_model(),
        "architecture": platform.machine(),
        "signature": host_facts.cpu_signature(host),
        "vector_flags": host_facts.vector_flags(host),
        "cache_bytes": host_facts.cache_bytes(host),
        "physical_cores": host.physical_cores(),
        "logical_cores": host.logical_cores(),
        "affinity": ranges(host.affinity),
        "quota_cores": host.cpu_quota(),
        "governor": _across(host, "cpufreq/scaling_governor"),
        "turbo": _turbo(host),
        "smt": _switch(host.number("sys/devices/system/cpu/smt/active")),
        "max_clock_hz": _khz(_across(host, "cpufreq/cpuinfo_max_freq")),
        "numa_nodes": _numa_nodes(host),
        "numa_memory_nodes": _line(status, "Mems_allowed_list"),
        "numa_policy": host_facts.numa_policy(host),
        "transparent_huge_pages": _chosen(host.text("sys/kernel/mm/transparent_hugepage/enabled")),
    }


def _surroundings(host: Host) -> dict[str, Any]:
    return {
        "host_name": platform.node(),
        "system": platform.system(),
        "distribution": host_facts.system_name(host),
        "microcode": host_facts.microcode(host),
        "kernel_release": platform.release(),
        "libc": " ".join(platform.libc_ver()).strip() or None,
        "virtual_machine": "hypervisor" in host.cpu_flags(),
        "memory_bytes": host.memory_bytes(),
        "swap_bytes": host.meminfo("SwapTotal"),
        "swappiness": host.number("proc/sys/vm/swappiness"),
    }


def _readings(host: Host) -> dict[str, Any]:
    total, free = host.meminfo("SwapTotal"), host.meminfo("SwapFree")
    return {
        "load_average": _loads(host),
        "memory_available_bytes": host.meminfo("MemAvailable"),
        "swap_used_bytes": None if total is None or free is None else total - free,
        "cpu_clock_hz": _khz(_across(host, "cpufreq/scaling_cur_freq")),
    }


def _driver(nvml: Nvml | None) -> dict[str, str | None]:
    version = nvml.read("nvmlSystemGetDriverVersion") if nvml else None
    cuda = nvml.read("nvmlSystemGetCudaDriverVersion") if nvml else None
    return {
        "version": version if isinstance(version, str) else None,
        "cuda": f"{cuda // 1000}.{cuda % 1000 // 10}" if isinstance(cuda, int) else None,
    }


def _across(host: Host, name: str) -> str | None:
    """One value when all CPUs of this process agree, else the different ones joined by a slash."""
    found = {host.text(f"sys/devices/system/cpu/cpu{cpu}/{name}") for cpu in host.affinity} - {None}
    return "/".join(sorted(text for text in found if text)) or None


def _turbo(host: Host) -> str | None:
    off = host.number("sys/devices/system/cpu/intel_pstate/no_turbo")
    return _switch(host.number("sys/devices/system/cpu/cpufreq/boost") if off is None else 1 - off)


def _switch(value: int | None) -> str | None:
    return {0: "off", 1: "on"}.get(-1 if value is None else value)


def _khz(text: str | None) -> list[float] | None:
    """Clocks in hertz from the kernel's kHz, one per different value."""
    found = [float(part) * 1e3 for part in (text or "").split("/") if re.fullmatch(r"[0-9]{1,12}", part)]
    return sorted(found) or None


def _numa_nodes(host: Host) -> int | None:
    online = host.text("sys/devices/system/node/online")
    if not online or not re.fullmatch(r"[0-9]{1,6}(-[0-9]{1,6})?(,[0-9]{1,6}(-[0-9]{1,6})?)*", online):
        return None
    spans = [part.split("-") for part in online.split(",")]
    return sum(int(span[-1]) - int(span[0]) + 1 for span in spans)


def _chosen(text: str | None) -> str | None:
    """`always [madvise] never` → `madvise`."""
    found = re.search(r"\[(\w+)\]", text or "")
    return found.group(1) if found else None


def _line(text: str, key: str) -> str | None:
    found = re.search(rf"^{key}:\s*(\S+)", text, re.MULTILINE)
    return found.group(1) if found else None


def _loads(host: Host) -> list[float] | None:
    """Load averages over 1, 5 and 15 minutes."""
    words = (host.text("proc/loadavg") or "").split()[:3]
    return [float(word) for word in words] if len(words) == 3 and all(_is_number(w) for w in words) else None


def _is_number(word: str) -> bool:
    return re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", word) is not None
