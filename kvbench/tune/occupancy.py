"""How many blocks of a kernel an SM holds at once. Torch-free.

The arithmetic of NVIDIA's `cuda_occupancy.h` (`cudaOccMaxActiveBlocksPerMultiprocessor`) for compute capabilities 8.0
to 12.0: registers are handed to warps in units of 256 within each of the SM's four partitions, shared memory to blocks
in units of 128 bytes, the driver's own kibibyte included.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvbench.devices.shared_memory import RESERVED_SHARED_BYTES
from kvbench.tune.targets import Target

WARP = 32
_REGISTER_UNIT = 256
_PARTITIONS = 4
_SHARED_UNIT = 128


@dataclass(frozen=True, slots=True)
class Occupancy:
    """Blocks and warps that are resident on one SM, the warps as a share of what it can hold, and what limits them."""

    blocks: int
    warps: int
    share: float
    limit: str


def occupancy(
    registers: int, shared_bytes: int, warps: int, target: Target, tensor_memory_columns: int = 0
) -> Occupancy:
    """Occupancy of blocks of `warps` warps that use `registers` per thread and `shared_bytes` per block; 0 blocks where
    one does not fit."""
    limits = {
        "warps": target.warps_per_sm // warps,
        "blocks": target.blocks_per_sm,
        "registers": _by_registers(registers, warps, target),
        "shared memory": _by_shared(shared_bytes, target),
    }
    if tensor_memory_columns:
        limits["tensor memory"] = target.tensor_memory_columns // tensor_memory_columns
    limit = min(limits, key=lambda name: limits[name])
    blocks = limits[limit]
    return Occupancy(blocks, blocks * warps, blocks * warps / target.warps_per_sm, limit)


def _by_registers(registers: int, warps: int, target: Target) -> int:
    if registers > target.registers_per_thread:
        return 0
    per_warp = _up(max(registers, 1) * WARP, _REGISTER_UNIT)
    resident = target.registers_per_sm // _PARTITIONS // per_warp * _PARTITIONS
    return resident // warps


def _by_shared(shared_bytes: int, target: Target) -> int:
    if shared_bytes > target.shared_per_block_bytes:
        return 0
    return target.shared_per_sm_bytes // _up(shared_bytes + RESERVED_SHARED_BYTES, _SHARED_UNIT)


def _up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
