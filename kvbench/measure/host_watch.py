"""What the CPU's owner did to us during a window: others' load, stolen time, involuntary switches, faults, swapping.

Counters are read at both ends and subtracted. What a system does not tell is None. Torch-free.
"""

from __future__ import annotations

import os
import re
import resource
import time
from dataclasses import dataclass

from kvbench.devices.host import Host

_PAGE_BYTES = resource.getpagesize()
_BUSY_FIELDS = (0, 1, 2, 5, 6)
"""user, nice, system, irq and softirq of a line of /proc/stat"""
_STEAL = 7
_MOST_CPUS = 8
"""Whose clocks are read: asking each of a hundred cores would itself be load"""


@dataclass(frozen=True, slots=True)
class HostCounters:
    """Running totals at one moment."""

    t_s: float
    own_cpu_s: float
    involuntary_switches: int
    major_faults: int
    busy_s: float | None
    stolen_s: float | None
    swapped_pages: int | None


@dataclass(frozen=True, slots=True)
class HostUse:
    """The difference between two moments."""

    window_s: float
    own_cpu_s: float
    involuntary_switches: int
    major_faults: int
    foreign_cpu_share: float | None
    """CPU time that others took, of what the CPUs of this process had to give."""
    steal_share: float | None
    """Time that the hypervisor gave to other machines, likewise."""
    swapped_bytes: int | None

    def columns(self) -> dict[str, float | int | None]:
        """The case columns of the same names."""
        names = ("foreign_cpu_share", "steal_share", "involuntary_switches", "major_faults", "swapped_bytes")
        return {name: getattr(self, name) for name in names}


def read_counters(host: Host) -> HostCounters:
    """The totals now."""
    own = resource.getrusage(resource.RUSAGE_SELF)
    busy_s, stolen_s = _cpu_times(host)
    return HostCounters(
        t_s=time.perf_counter(),
        own_cpu_s=own.ru_utime + own.ru_stime,
        involuntary_switches=own.ru_nivcsw,
        major_faults=own.ru_majflt,
        busy_s=busy_s,
        stolen_s=stolen_s,
        swapped_pages=_swapped_pages(host),
    )


def difference(before: HostCounters, after: HostCounters, cpus: int) -> HostUse:
    """What happened in between. A counter that went backwards tells nothing."""
    window_s = max(after.t_s - before.t_s, 1e-9)
    own = after.own_cpu_s - before.own_cpu_s
    busy, stolen = _rise(before.busy_s, after.busy_s), _rise(before.stolen_s, after.stolen_s)
    pages = _rise(before.swapped_pages, after.swapped_pages)
    return HostUse(
        window_s=window_s,
        own_cpu_s=own,
        involuntary_switches=max(0, after.involuntary_switches - before.involuntary_switches),
        major_faults=max(0, after.major_faults - before.major_faults),
        foreign_cpu_share=None if busy is None else min(1.0, max(0.0, busy - own) / (window_s * cpus)),
        steal_share=None if stolen is None else min(1.0, stolen / (window_s * cpus)),
        swapped_bytes=None if pages is None else int(pages) * _PAGE_BYTES,
    )


def cpu_clock_hz(host: Host) -> float | None:
    """Mean clock of this process's CPUs now."""
    cpus = sorted(host.affinity)[:_MOST_CPUS]
    found = [host.number(f"sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_cur_freq") for cpu in cpus]
    clocks = [khz * 1e3 for khz in found if khz is not None and 0 < khz < 10**8]
    if not clocks:
        text = host.text("proc/cpuinfo") or ""
        clocks = [float(mhz) * 1e6 for mhz in re.findall(r"^cpu MHz\s*:\s*([0-9]{1,6}(?:\.[0-9]+)?)$", text, re.M)]
    return sum(clocks) / len(clocks) if clocks else None


def _cpu_times(host: Host) -> tuple[float | None, float | None]:
    """Busy and stolen seconds of this process's CPUs since the system came up."""
    text = host.text("proc/stat") or ""
    lines = re.findall(r"^cpu([0-9]{1,6}) ((?:[0-9]{1,19} ?){8,10})$", text, re.MULTILINE)
    mine = [[int(word) for word in words.split()] for cpu, words in lines if int(cpu) in host.affinity]
    if not mine:
        return None, None
    tick = os.sysconf("SC_CLK_TCK")
    busy = sum(line[field] for line in mine for field in _BUSY_FIELDS)
    return busy / tick, sum(line[_STEAL] for line in mine) / tick


def _swapped_pages(host: Host) -> int | None:
    text = host.text("proc/vmstat") or ""
    found = [re.search(rf"^{name} ([0-9]{{1,19}})$", text, re.MULTILINE) for name in ("pswpin", "pswpout")]
    counts = [int(match.group(1)) for match in found if match]
    return sum(counts) if len(counts) == len(found) else None


def _rise(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None or after < before else after - before
