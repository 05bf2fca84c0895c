"""What a case needs at once, in bytes, and whether this machine has it."""

from __future__ import annotations

from dataclasses import dataclass

from kvbench.devices.facts import Device
from kvbench.engine.automatic import WEIGHT_DTYPE
from kvbench.engine.kvstore.disk_folder import base_folder, check_disk
from kvbench.engine.memory import disk_blocks, tier_blocks
from kvbench.engine.speculation.geometry import check_draft
from kvbench.errors import CannotRunError
from kvbench.geometry.budget import DEVICE_CONTEXT_BYTES, Load, activation_bytes, logit_bytes
from kvbench.geometry.memory import block_bytes, kv_bytes_per_token, pool_layout
from kvbench.geometry.model import ModelGeometry
from kvbench.geometry.weights import weight_bytes
from kvbench.measure.kernel_geometry import buffer_sets
from kvbench.spec.engine import EngineSettings
from kvbench.spec.suite import KernelSettings
from kvbench.sweep.machine import Machine
from kvbench.sweep.resolve import context_limit
from kvbench.units import format_bytes

AUTO_SHARE = 0.9


@dataclass(frozen=True, slots=True)
class Memory:
    """What a case needs at once, bytes."""

    weights: int
    kv: int
    host_tier: int
    working: int

    @property
    def device_total(self) -> int:
        return self.weights + self.kv + self.working

    def arithmetic(self) -> str:
        parts = (
            f"weights {format_bytes(self.weights)} + KV {format_bytes(self.kv)} + working {format_bytes(self.working)}"
        )
        host = f" (and {format_bytes(self.host_tier)} of host tier and swap area)" if self.host_tier else ""
        return f"{parts} = {format_bytes(self.device_total)}{host}"


def auto_kv_bytes(machine: Machine, geometry: ModelGeometry, engine: EngineSettings) -> int:
    """`kv_memory = "auto"`: 90 % of what weights, activations and logits leave of the free memory."""
    device = machine.device
    free = machine.free_bytes(device.kind)
    need = engine_memory(geometry, engine, 0, device)
    left = int((free - need.weights - need.working - need.host_tier * (device.kind == "cpu")) * AUTO_SHARE)
    if left <= 0:
        raise CannotRunError(
            f"no memory is left for KV: {format_bytes(free)} free, {need.arithmetic()} before any KV",
            hint="choose a smaller model or weight_dtype",
        )
    return left


def engine_memory(geometry: ModelGeometry, engine: EngineSettings, kv_bytes: int, device: Device) -> Memory:
    """Of an engine case with `kv_bytes` of KV, bytes, at its largest step."""
    dtype = WEIGHT_DTYPE[device.kind] if engine.weight_dtype == "auto" else engine.weight_dtype
    load = Load(engine.max_sequences, engine.max_batch_tokens, context_limit(engine, geometry))
    width = 2 if dtype == "fp32" else 1  # the budget counts activations at 16 bits
    working = width * activation_bytes(geometry, load.max_batch_tokens) + _rows(engine) * logit_bytes(geometry, load)
    if engine.reblock_to != "none":  # a staging buffer of one plane of the pool
        working += -(-kv_bytes // pool_layout(geometry, engine.kv_dtype, engine.block_size).layers_per_block)
    runtime = 0 if device.kind == "cpu" else DEVICE_CONTEXT_BYTES
    host_tier = 0 if engine.offload == "none" else engine.host_memory
    host_tier += 0 if engine.preemption == "recompute" else engine.swap_memory
    draft = check_draft(geometry, engine)
    weights = weight_bytes(geometry, dtype) + (0 if draft is None else weight_bytes(draft, dtype))
    return Memory(weights, kv_bytes, host_tier, working + runtime)


def _rows(engine: EngineSettings) -> int:
    """Rows of logits of a decoding sequence."""
    return 1 if engine.speculation == "none" else 1 + engine.draft_tokens


def kernel_memory(kernel: KernelSettings, geometry: ModelGeometry) -> Memory:
    """The store, and K and V in float32 before they are stored."""
    blocks = kernel.batch * -(-kernel.context // kernel.block_size) * buffer_sets(kernel)
    stored = blocks * block_bytes(geometry, kernel.kv_dtype, kernel.block_size, kernel.kv_scales)
    raw = kernel.batch * kernel.context * int(kv_bytes_per_token(geometry, "fp32"))
    return Memory(0, stored, 0, 2 * raw)


def does_not_fit(memory: Memory, machine: Machine) -> str | None:
    """Why this case cannot run here, with the arithmetic; None when it can."""
    device = machine.device
    free = machine.free_bytes(device.kind)
    need = memory.device_total + (memory.host_tier if device.kind == "cpu" else 0)
    if need > free:
        return f"needs {memory.arithmetic()}, and {format_bytes(free)} is free"
    if device.kind != "cpu" and memory.host_tier > machine.free_bytes("cpu"):
        return f"needs {format_bytes(memory.host_tier)} for host tier and swap area, more host memory than is free"
    return None


def tiers_do_not_fit(engine: EngineSettings, geometry: ModelGeometry, machine: Machine) -> str | None:
    """Why the lower tiers cannot be had: too small for one block, or a disk that is full or cannot be written."""
    one = pool_layout(geometry, engine.kv_dtype, engine.block_size, engine.kv_scales).block_bytes
    try:
        if engine.offload != "none":
            tier_blocks("host_memory", engine.host_memory, one)
        if engine.preemption != "recompute":
            tier_blocks("swap_memory", engine.swap_memory, one)
        if disk_blocks(engine, one) and not machine.is_virtual:
            check_disk(base_folder(engine.disk_path), engine.disk_memory)
    except CannotRunError as error:
        return f"{error.message}: {error.hint}"
    return None
