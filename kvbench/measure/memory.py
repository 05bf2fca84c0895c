"""Free memory at this moment. Torch-free until CUDA is asked about."""

from __future__ import annotations

from kvbench.engine.memory import free_host_bytes


def free_memory_bytes(kind: str) -> int:
    """Bytes that a new allocation may hope for: `cpu` by the kernel and the control groups, `cuda` by the driver."""
    if kind == "cuda":
        import torch

        return int(torch.cuda.mem_get_info()[0])
    return free_host_bytes()
