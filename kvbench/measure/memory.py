"""Free memory at this moment. Torch-free until CUDA is asked about."""

from __future__ import annotations

from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")


def free_memory_bytes(kind: str) -> int:
    """Bytes that a new allocation may hope for: `cpu` by the kernel and the cgroup's limit, `cuda` by the driver."""
    if kind == "cuda":
        import torch

        return int(torch.cuda.mem_get_info()[0])
    left = _cgroup_left()
    available = _meminfo("MemAvailable")
    return available if left is None else min(available, left)


def _meminfo(name: str) -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return 0


def _cgroup_left() -> int | None:
    """What the cgroup (v2) still allows, page cache counted as free; None without a limit."""
    try:
        limit = (_CGROUP / "memory.max").read_text().strip()
        used = int((_CGROUP / "memory.current").read_text())
        stat = dict(line.split() for line in (_CGROUP / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return None
    return None if limit == "max" else int(limit) - used + int(stat.get("inactive_file", 0))
