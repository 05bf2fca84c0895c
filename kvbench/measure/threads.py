"""How many CPU threads a measurement uses. Torch-free."""

from __future__ import annotations

import os


def available_threads() -> int:
    """Physical cores this process may use; hyperthreads of one core count once."""
    allowed = os.sched_getaffinity(0)
    cores: set[tuple[str, str]] = set()
    for cpu in allowed:
        base = f"/sys/devices/system/cpu/cpu{cpu}/topology"
        try:
            with open(f"{base}/physical_package_id") as package, open(f"{base}/core_id") as core:
                cores.add((package.read().strip(), core.read().strip()))
        except OSError:
            return len(allowed)
    return max(1, len(cores))
