"""The machine around the device, read from /proc and /sys: CPU, cores, memory, control-group limits.

Every reading that the system does not offer is None; nothing here raises because a file is absent, locked or odd.
"""

from __future__ import annotations

import os
import platform
import re
from dataclasses import dataclass, field
from pathlib import Path

UNLIMITED_BYTES = 1 << 60
"""Control groups of version 1 write a number near 2^63 for "no limit"."""


def _affinity() -> frozenset[int]:
    try:
        return frozenset(os.sched_getaffinity(0))
    except (AttributeError, OSError):
        return frozenset(range(os.cpu_count() or 1))


@dataclass(frozen=True, slots=True)
class Host:
    """Readings of one machine. `root` and `affinity` are replaced in tests."""

    root: Path = Path("/")
    affinity: frozenset[int] = field(default_factory=_affinity)

    def text(self, path: str) -> str | None:
        """Contents of a small system file, stripped."""
        try:
            return (self.root / path).read_bytes()[: 1 << 20].decode(errors="replace").strip()
        except (OSError, ValueError):
            return None

    def number(self, path: str) -> int | None:
        """Contents of a system file that holds one whole number."""
        return _int(self.text(path))

    def cpu_model(self) -> str:
        info = self.text("proc/cpuinfo") or ""
        found = re.search(r"^(?:model name|Model|cpu model|Hardware)\s*:\s*(.+)$", info, re.MULTILINE)
        return found.group(1).strip() if found else platform.processor() or platform.machine() or "unknown CPU"

    def cpu_flags(self) -> frozenset[str]:
        """Instruction-set flags of the first CPU."""
        found = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", self.text("proc/cpuinfo") or "", re.MULTILINE)
        return frozenset(found.group(1).split()) if found else frozenset()

    def logical_cores(self) -> int:
        """CPUs that this process may run on."""
        return max(1, len(self.affinity))

    def physical_cores(self) -> int:
        """Cores behind those CPUs, hyperthreads counted once; the CPUs themselves where topology is not told."""
        cores = {self._core_of(cpu) for cpu in self.affinity}
        return max(1, len(cores))

    def _core_of(self, cpu: int) -> tuple[str, str]:
        topology = f"sys/devices/system/cpu/cpu{cpu}/topology"
        package, core = self.text(f"{topology}/physical_package_id"), self.text(f"{topology}/core_id")
        return ("cpu", str(cpu)) if package is None or core is None else (package, core)

    def cpu_quota(self) -> float | None:
        """CPUs' worth of time that the control group allows, None without a limit."""
        limits = [self._quota_at(folder) for folder in self._cgroup_folders("cpu")]
        return min((limit for limit in limits if limit is not None), default=None)

    def _quota_at(self, folder: str) -> float | None:
        unified = (self.text(f"{folder}/cpu.max") or "").split()
        if len(unified) == 2:
            quota, period = _int(unified[0]), _int(unified[1])
        else:
            quota = self.number(f"{folder}/cpu.cfs_quota_us")
            period = self.number(f"{folder}/cpu.cfs_period_us")
        return quota / period if quota and period and quota > 0 and period > 0 else None

    def usable_cores(self) -> int:
        """Threads worth starting: physical cores within affinity and quota, at least 1."""
        quota = self.cpu_quota()
        cores = self.physical_cores()
        return cores if quota is None else max(1, min(cores, int(quota)))

    def last_level_cache_bytes(self) -> int | None:
        """The largest of the first CPU's caches."""
        base = f"sys/devices/system/cpu/cpu{min(self.affinity, default=0)}/cache"
        sizes = [self.text(f"{base}/index{index}/size") or "" for index in range(8)]
        found = [re.fullmatch(r"([0-9]{1,9})([KM])", size) for size in sizes]
        return max((int(m[1]) << {"K": 10, "M": 20}[m[2]] for m in found if m), default=None)

    def memory_bytes(self) -> int | None:
        """Installed memory, or the control group's limit where that is smaller."""
        limits = [self.meminfo("MemTotal"), *map(self._memory_limit_at, self._cgroup_folders("memory"))]
        return min((limit for limit in limits if limit is not None), default=None)

    def _memory_limit_at(self, folder: str) -> int | None:
        for name in ("memory.max", "memory.limit_in_bytes"):
            limit = self.number(f"{folder}/{name}")
            if limit is not None and 0 < limit < UNLIMITED_BYTES:
                return limit
        return None

    def available_bytes(self) -> int | None:
        """Memory that a new allocation can get without swapping, by the kernel and by the control groups."""
        folders = self._cgroup_folders("memory")
        lefts = [self.meminfo("MemAvailable"), *map(self._memory_left_at, folders)]
        return min((left for left in lefts if left is not None), default=None)

    def _memory_left_at(self, folder: str) -> int | None:
        """Limit less use, page cache counted as free; None without a limit."""
        limit = self._memory_limit_at(folder)
        used = self.number(f"{folder}/memory.current") or self.number(f"{folder}/memory.usage_in_bytes")
        stat = self.text(f"{folder}/memory.stat") or ""
        cache = re.search(r"^(?:total_)?inactive_file ([0-9]{1,18})$", stat, re.MULTILINE)
        return None if limit is None or used is None else limit - used + (int(cache.group(1)) if cache else 0)

    def meminfo(self, key: str) -> int | None:
        """A line of /proc/meminfo, in bytes."""
        found = re.search(rf"^{re.escape(key)}:\s*([0-9]{{1,18}}) kB", self.text("proc/meminfo") or "", re.MULTILINE)
        return int(found.group(1)) * 1024 if found else None

    def _cgroup_folders(self, controller: str) -> list[str]:
        """Folders from this process's group up to the root of its hierarchy; a limit on any of them binds."""
        folders = [f"sys/fs/cgroup/{controller}", "sys/fs/cgroup"]
        for line in (self.text("proc/self/cgroup") or "").splitlines():
            _, _, rest = line.partition(":")
            names, _, path = rest.partition(":")
            if names and controller not in names.split(","):
                continue
            base = f"sys/fs/cgroup/{controller}" if names else "sys/fs/cgroup"
            parts = [part for part in path.split("/") if part and part != ".."]
            folders += ["/".join([base, *parts[:depth]]) for depth in range(1, len(parts) + 1)]
        return list(dict.fromkeys(folders))


def _int(text: str | None) -> int | None:
    """A whole number of at most 19 digits, as the kernel writes them; everything else is no number."""
    return int(text) if text and re.fullmatch(r"-?[0-9]{1,19}", text) else None
