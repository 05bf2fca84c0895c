"""What else of the host decides a number: which CPU it really is, its caches, where memory goes, what wraps it."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from typing import Any

from kvbench.devices.host import Host

IMAGE_VARIABLE = "KVBENCH_IMAGE"
"""The container image by name or digest: nothing inside a container tells it, so whoever starts one may."""
_VECTORS = re.compile(r"avx\w*|amx\w*|sse4\w*|fma|f16c|bf16\w*|asimd\w*|sve\w*|i8mm")


def cpu_signature(host: Host) -> str | None:
    """family/model/stepping: in a virtual machine different CPUs have the same name."""
    info = host.text("proc/cpuinfo") or ""
    found = [re.search(rf"^{name}\s*:\s*(\w+)$", info, re.MULTILINE) for name in ("cpu family", "model", "stepping")]
    return "/".join(match.group(1) if match else "?" for match in found) if any(found) else None


def vector_flags(host: Host) -> str | None:
    """The vector instructions that the CPU offers, sorted."""
    return " ".join(sorted(flag for flag in host.cpu_flags() if _VECTORS.fullmatch(flag))) or None


def cache_bytes(host: Host) -> dict[str, int | None]:
    """Sizes of the data caches of the first CPU of this process."""
    sizes: dict[str, int | None] = {"l1d": None, "l2": None, "l3": None}
    folder = f"sys/devices/system/cpu/cpu{min(host.affinity, default=0)}/cache"
    for index in range(8):
        level, kind = host.number(f"{folder}/index{index}/level"), host.text(f"{folder}/index{index}/type")
        name = {(1, "Data"): "l1d", (2, "Unified"): "l2", (3, "Unified"): "l3"}.get((level or 0, kind or ""))
        size = re.fullmatch(r"([0-9]{1,9})K", host.text(f"{folder}/index{index}/size") or "")
        if name and size:
            sizes[name] = int(size.group(1)) * 1024
    return sizes


def numa_policy(host: Host) -> str | None:
    """Where this process takes memory: `default`, `bind:0`, `interleave:0-1` …"""
    found = re.match(r"[0-9a-f]+ ([a-z][\w =:,-]{0,60}?)(?= (?:file|heap|stack|huge|anon|dirty|mapped|N[0-9])|$)",
                     host.text("proc/self/numa_maps") or "")  # fmt: skip
    return found.group(1) if found else None


def container(host: Host, environ: Mapping[str, str] | None = None) -> dict[str, str | None]:
    """What wraps this process and from which image; None where nothing shows."""
    stated = (os.environ if environ is None else environ).get(IMAGE_VARIABLE)
    about = host.text("run/.containerenv")
    image = re.search(r'^imageid="?([^"\n]+)"?$', about or "", re.MULTILINE)
    return {"kind": _kind(host, about), "image": stated or (image.group(1) if image else None)}


def python_facts() -> dict[str, Any]:
    """How this Python runs: assertions on or off, with or without the global lock."""
    gil = getattr(sys, "_is_gil_enabled", None)
    return {"optimize": sys.flags.optimize, "gil": gil() if gil else True}


def system_name(host: Host) -> str | None:
    """The distribution, as in `Debian GNU/Linux 12 (bookworm)`."""
    found = re.search(r'^PRETTY_NAME="?([^"\n]+)"?$', host.text("etc/os-release") or "", re.MULTILINE)
    return found.group(1) if found else None


def microcode(host: Host) -> str | None:
    """The CPU's microcode revision as /proc/cpuinfo has it; None where it does not say."""
    found = re.search(r"^microcode\s*:\s*(\w+)$", host.text("proc/cpuinfo") or "", re.MULTILINE)
    return found.group(1) if found else None


def _kind(host: Host, about: str | None) -> str | None:
    groups = host.text("proc/1/cgroup") or ""
    if about is not None:
        return "podman"
    if "kubepods" in groups:
        return "kubernetes"
    return "docker" if host.text(".dockerenv") is not None or "docker" in groups else None
