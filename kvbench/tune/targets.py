"""What an architecture can hold: the facts that a compiled kernel is judged by when no device is there. Torch-free.

Registers, warps and blocks: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability"; shared
memory: `devices/shared_memory.py`. Tensor memory: PTX ISA, `tcgen05.alloc`. fp8 e4m3 conversions:
PTX ISA, `cvt` (sm_89 and later).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from kvbench.devices.facts import Device
from kvbench.devices.lookup import known_device
from kvbench.devices.shared_memory import RESERVED_SHARED_BYTES, SHARED_PER_SM_BYTES
from kvbench.devices.table import DEVICES
from kvbench.errors import UsageError
from kvbench.geometry.dtypes import storage_dtype

_ALL_KV = ("fp32", "fp16", "bf16", "fp8_e5m2", "int8")


@dataclass(frozen=True, slots=True)
class Target:
    """One architecture; `arch` is its number as compilers have it (90 for compute capability 9.0)."""

    arch: int
    warps_per_sm: int
    blocks_per_sm: int
    registers_per_sm: int = 65_536
    registers_per_thread: int = 255
    threads_per_block: int = 1024
    tensor_memory_columns: int = 0

    @property
    def name(self) -> str:
        return f"sm_{self.arch}"

    @property
    def compute_capability(self) -> str:
        return f"{self.arch // 10}.{self.arch % 10}"

    @property
    def shared_per_sm_bytes(self) -> int:
        return SHARED_PER_SM_BYTES[self.compute_capability]

    @property
    def shared_per_block_bytes(self) -> int:
        return self.shared_per_sm_bytes - RESERVED_SHARED_BYTES

    @property
    def kv_dtypes(self) -> tuple[str, ...]:
        return (*_ALL_KV, "fp8_e4m3") if self.arch >= 89 else _ALL_KV


TARGETS: tuple[Target, ...] = (
    Target(80, warps_per_sm=64, blocks_per_sm=32),
    Target(86, warps_per_sm=48, blocks_per_sm=16),
    Target(89, warps_per_sm=48, blocks_per_sm=24),
    Target(90, warps_per_sm=64, blocks_per_sm=32),
    Target(100, warps_per_sm=64, blocks_per_sm=32, tensor_memory_columns=512),
    Target(120, warps_per_sm=48, blocks_per_sm=24),
)


def known_target(name: str) -> Target:
    """`sm_90`, `sm90`, `90` or `9.0`; `UsageError` with the known ones otherwise."""
    found = re.fullmatch(r"(?:sm_?|cuda:)?(\d{1,3})(?:\.(\d))?a?", name.strip().lower())
    digits = "".join(part for part in found.groups() if part) if found else ""
    for target in TARGETS:
        if digits == str(target.arch):
            return target
    known = ", ".join(target.name for target in TARGETS)
    raise UsageError(f"unknown target {name!r}", hint=f"one of {known}; kvbench holds no facts of others")


def refuse_dtype(target: Target, kv_dtype: str) -> None:
    """`UsageError` where the architecture cannot read that KV dtype at all (K12), with those that it can."""
    name = storage_dtype(kv_dtype).name
    if name in target.kv_dtypes:
        return
    offered = ", ".join(target.kv_dtypes)
    reason = "needs sm_89 or later" if name == "fp8_e4m3" else "is not a dtype of the Triton kernels"
    raise UsageError(f"KV dtype {name} {reason}; the target is {target.name}", hint=f"it offers {offered}")


def device_of(target: Target, gpu: str | None = None) -> Device:
    """The device whose SMs and bandwidth a ranking assumes: the one named, else the first known of that architecture.

    `UsageError` for a device of another architecture.
    """
    if gpu is None:
        return next(device for device in DEVICES if device.compute_capability == target.compute_capability)
    device = known_device(gpu)
    if device.compute_capability != target.compute_capability:
        has = device.compute_capability
        is_of = f"has compute capability {has}" if has else "is of no known architecture"
        raise UsageError(
            f"{device.name} {is_of}; {target.name} is {target.compute_capability}",
            hint="leave --gpu out for a GPU of the target's architecture",
        )
    return device
