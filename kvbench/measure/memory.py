"""Free memory at this moment. Torch-free: asking torch would open a CUDA context in the sweep's own process, and keep
its memory from the workers."""

from __future__ import annotations

from typing import Any

from kvbench.devices.nvml import open_nvml
from kvbench.engine.memory import free_host_bytes
from kvbench.errors import CannotRunError


def free_memory_bytes(kind: str, *, nvml_module: Any = None) -> int:
    """Bytes that a new allocation may hope for: `cpu` by the kernel and the control groups, `cuda` by the driver.

    Raises `CannotRunError` when no GPU answers. `nvml_module` is replaced in tests.
    """
    return _free_gpu_bytes(nvml_module) if kind == "cuda" else free_host_bytes()


def _free_gpu_bytes(module: Any) -> int:
    with open_nvml(module) as nvml:
        handles = nvml.handles() if nvml else []
        total, used = nvml.memory_bytes(handles[0]) if nvml and handles else (None, None)
    if total is None or used is None:
        raise CannotRunError("the driver does not tell how much GPU memory is free", hint="check nvidia-smi")
    return total - used
