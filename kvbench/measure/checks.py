"""What would make numbers bad on this machine: each finding with its evidence and the way to better ones.

Checks read the dict of `measure.environment.capture` and a few places that runs write to. They change nothing.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from kvbench.measure.gpu_facts import HARMLESS
from kvbench.paths import cache_dir
from kvbench.units import format_bytes

Severity = Literal["ok", "note", "warning", "problem"]
SEVERITIES: tuple[Severity, ...] = ("problem", "warning", "note", "ok")

BUSY_SHARE = 0.15
"""Load per core above which neighbours move medians by more than the 2 % that a gate looks for."""

LOW_DISK_BYTES = 1 << 30
LOW_MEMORY_SHARE = 0.2
FEW_CORES = 4
HOT_C = 80
FOREIGN_GPU_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class Finding:
    """`severity`: problem = a sweep cannot work; warning = numbers suffer; note = know it; ok = looked, fine."""

    check: str
    severity: Severity
    evidence: str
    remedy: str = ""


def examine(state: Mapping[str, Any], results: Path) -> list[Finding]:
    """All findings, worst first. `state` comes from `capture`, `results` is where runs would be written."""
    cpu, host = state["controlled"]["cpu"], state["volatile"]["host"]
    found = [
        *_cores(cpu),
        *_load(cpu, host["load_average"]),
        *_clocks(cpu),
        *_memory(state["environment"]["host"], host, cpu),
        *_software(state["controlled"]),
        *_places(results),
        *_gpus(state),
    ]
    return sorted(found, key=lambda finding: SEVERITIES.index(finding.severity))


def _cores(cpu: Mapping[str, Any]) -> Iterator[Finding]:
    physical, logical, quota = cpu["physical_cores"], cpu["logical_cores"], cpu["quota_cores"]
    seen = f"{physical} physical cores, {logical} CPUs allowed ({cpu['affinity']})"
    if physical < FEW_CORES:
        yield Finding("cores", "note", seen, "few cores: leave the machine alone while a sweep runs, and repeat more")
    else:
        yield Finding("cores", "ok", seen)
    if logical > physical:
        yield Finding(
            "hyperthreads", "note", f"{logical} CPUs on {physical} cores",
            "threads default to physical cores; pin with taskset if other work shares them",
        )  # fmt: skip
    if quota is not None:
        severity: Severity = "warning" if quota < physical else "note"
        yield Finding(
            "cpu quota", severity, f"control group allows {quota:g} of {physical} cores",
            "raise the container's CPU limit, or set measure.threads to what it allows",
        )  # fmt: skip


def _load(cpu: Mapping[str, Any], loads: list[float] | None) -> Iterator[Finding]:
    if loads is None:
        yield Finding("load", "note", "load average cannot be read")
        return
    share = loads[0] / cpu["logical_cores"]
    seen = f"load average {loads[0]:.2f} on {cpu['logical_cores']} CPUs"
    if share > BUSY_SHARE:
        yield Finding("load", "warning", seen, "stop other work, or wait: neighbours show up as noise")
    else:
        yield Finding("load", "ok", seen)


def _clocks(cpu: Mapping[str, Any]) -> Iterator[Finding]:
    governor = cpu["governor"]
    if governor is None:
        yield Finding("governor", "note", "CPU frequency is not visible (virtual machine or container)",
                      "clocks may change unseen: interleave what you compare")  # fmt: skip
    elif governor != "performance":
        yield Finding("governor", "warning", f"governor is {governor}", "cpupower frequency-set -g performance")
    else:
        yield Finding("governor", "ok", "governor is performance")
    if cpu["turbo"] == "on":
        yield Finding("turbo", "note", "turbo is on: clocks follow heat and neighbours",
                      "turn it off for comparisons: echo 0 > /sys/devices/system/cpu/cpufreq/boost, or "
                      "echo 1 > /sys/devices/system/cpu/intel_pstate/no_turbo")  # fmt: skip


def _memory(noted: Mapping[str, Any], host: Mapping[str, Any], cpu: Mapping[str, Any]) -> Iterator[Finding]:
    total, available, swapped = noted["memory_bytes"], host["memory_available_bytes"], host["swap_used_bytes"]
    if swapped:
        yield Finding(
            "swap", "warning", f"{format_bytes(swapped)} swapped out", "free memory, then swapoff -a; swapon -a"
        )
    if total and available is not None:
        low = available < LOW_MEMORY_SHARE * total
        seen = f"{format_bytes(available)} of {format_bytes(total)} available"
        remedy = "stop what holds memory, or give engine.kv_memory in bytes" if low else ""
        yield Finding("memory", "warning" if low else "ok", seen, remedy)
    pages = cpu["transparent_huge_pages"]
    if pages == "always":
        yield Finding("huge pages", "note", "transparent huge pages: always",
                      "compaction may stall a step; keep it equal in runs you compare")  # fmt: skip
    elif pages is not None:
        yield Finding("huge pages", "ok", f"transparent huge pages: {pages}")


def _software(controlled: Mapping[str, Any]) -> Iterator[Finding]:
    versions, variables, cpu = controlled["versions"], controlled["variables"], controlled["cpu"]
    for name in ("torch", "numba"):
        if versions[name] is None:
            yield Finding(name, "problem", f"{name} is not installed", "install kvbench with its requirements")
        else:
            yield Finding(name, "ok", f"{name} {versions[name]}")
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"):
        value = variables.get(name)
        if value is not None and value != str(cpu["physical_cores"]):
            yield Finding("threads", "note", f"{name}={value} on {cpu['physical_cores']} cores",
                          "unset it, or set measure.threads, so that both libraries use the same number")  # fmt: skip
    if variables.get("NUMBA_DISABLE_JIT", "0") not in ("", "0"):
        yield Finding("numba", "problem", "NUMBA_DISABLE_JIT is set", "unset it: kernels would run as plain Python")
    if controlled["kvbench"]["git_dirty"]:
        yield Finding("checkout", "note", "kvbench's checkout has uncommitted changes",
                      "commit before a run that you want to compare or publish")  # fmt: skip


def _places(results: Path) -> Iterator[Finding]:
    yield from _writable("results folder", results, "give another folder with --out")
    numba = os.environ.get("NUMBA_CACHE_DIR")
    yield from _writable("kernel cache", Path(numba) if numba else cache_dir(), "set KVBENCH_CACHE_DIR", lasting=False)


def _writable(check: str, folder: Path, remedy: str, *, lasting: bool = True) -> Iterator[Finding]:
    """Tries a temporary file in the folder, or in the nearest ancestor that exists."""
    nearest = next((p for p in (folder, *folder.absolute().parents) if _exists(p)), Path("/"))
    try:
        with tempfile.TemporaryFile(dir=nearest):
            free = shutil.disk_usage(nearest).free
    except OSError as error:
        severity: Severity = "problem" if lasting else "warning"
        reason = error.strerror or type(error).__name__
        extra = "" if lasting else ", or kernels are compiled anew in every process"
        yield Finding(check, severity, f"cannot write to {folder}: {reason}", remedy + extra)
        return
    if free < LOW_DISK_BYTES:
        yield Finding(check, "warning", f"{format_bytes(free)} free at {folder}", f"free some space, or {remedy}")
    else:
        yield Finding(check, "ok", f"{folder} is writable, {format_bytes(free)} free")


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:
        return False


def _gpus(state: Mapping[str, Any]) -> Iterator[Finding]:
    gpus = state["controlled"]["gpus"]
    if not gpus:
        yield Finding(
            "device", "note", f"no CUDA device: the CPU ({state['controlled']['cpu']['model']}) is the device"
        )
    elif (state["controlled"]["versions"]["torch"] or "").endswith("+cpu"):
        yield Finding("torch", "problem", "torch is a CPU build, but there is a GPU",
                      "install a CUDA build of torch, or run with measure.device = cpu")  # fmt: skip
    for index, (fixed, now) in enumerate(zip(gpus, state["volatile"]["gpus"], strict=True)):
        where = f"gpu {index}"
        yield Finding(where, "ok", f"{fixed['name'] or 'a GPU without a name'}")
        yield from _gpu_settings(where, fixed)
        yield from _gpu_now(where, now)


def _gpu_settings(where: str, gpu: Mapping[str, Any]) -> Iterator[Finding]:
    if gpu["persistence_mode"] == "off":
        yield Finding(where, "warning", "persistence mode is off: the driver unloads between processes",
                      "nvidia-smi -pm 1")  # fmt: skip
    if not gpu["clocks_locked"]:
        yield Finding(where, "note", "clocks are not known to be locked", "nvidia-smi --lock-gpu-clocks steadies them")
    if gpu["ecc"] is not None:
        yield Finding(where, "note", f"ECC is {gpu['ecc']}", "it must be equal in runs you compare")
    if gpu["mig"] == "on":
        yield Finding(where, "note", "MIG is on: a slice shares clocks and power with its neighbours")
    limit, default = gpu["power_limit_w"], gpu["default_power_limit_w"]
    if limit is not None and default is not None and limit < default:
        yield Finding(where, "note", f"power limit {limit:g} W is below the default {default:g} W",
                      f"nvidia-smi -pl {default:g}")  # fmt: skip


def _gpu_now(where: str, now: Mapping[str, Any]) -> Iterator[Finding]:
    held = _harmful(now["throttle_reasons"] or ())
    if held:
        yield Finding(
            where, "warning", f"clocks are held back now: {', '.join(held)}", "let it cool, or raise its power limit"
        )
    if now["temperature_c"] is not None and now["temperature_c"] >= HOT_C:
        yield Finding(
            where, "warning", f"{now['temperature_c']} °C before anything has run", "let it cool; check its fans"
        )
    if now["process_ids"]:
        yield Finding(where, "warning", f"other processes use it: {', '.join(map(str, now['process_ids']))}",
                      "wait for them, or choose another GPU with CUDA_VISIBLE_DEVICES")  # fmt: skip
    elif (now["memory_used_bytes"] or 0) > FOREIGN_GPU_BYTES:
        used = format_bytes(now["memory_used_bytes"])
        yield Finding(where, "warning", f"{used} in use, but no process shows", "another container may share this GPU")


def _harmful(reasons: Iterable[str]) -> list[str]:
    return [reason for reason in reasons if reason not in HARMLESS]
