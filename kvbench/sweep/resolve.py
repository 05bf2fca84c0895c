"""From what a case asks to what this machine will do: device, model, KV memory, requests, and whether it fits."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path

from kvbench.cache.reservations import largest_piece
from kvbench.costmodel.profiles import DEFAULT_DEVICE, virtual_device
from kvbench.costmodel.rates import NamedRates, read_rates
from kvbench.costmodel.roofline import roofline
from kvbench.devices.detect import detect
from kvbench.devices.facts import Device
from kvbench.engine.automatic import ATTENTION, WEIGHT_DTYPE
from kvbench.engine.kvstore.disk_folder import base_folder, check_disk
from kvbench.engine.memory import disk_blocks, reserves_maximum, step_tokens, tier_blocks
from kvbench.engine.speculation.geometry import check_draft, draft_block_bytes
from kvbench.errors import CannotRunError, UsageError
from kvbench.geometry.budget import DEVICE_CONTEXT_BYTES, Load, activation_bytes, logit_bytes
from kvbench.geometry.huggingface import geometry_from_folder
from kvbench.geometry.memory import block_bytes, kv_bytes_per_token, pool_layout
from kvbench.geometry.model import ModelGeometry
from kvbench.geometry.presets import preset_names
from kvbench.geometry.resolve import auto_model, resolve_model
from kvbench.geometry.weights import weight_bytes
from kvbench.measure.memory import free_memory_bytes
from kvbench.spec.cases import Case
from kvbench.spec.engine import EngineSettings
from kvbench.spec.suite import KernelSettings, MeasureSettings, ModelSettings
from kvbench.spec.workload import WorkloadSettings
from kvbench.units import format_bytes
from kvbench.workload.build import Workload

AUTO_SHARE = 0.9
_ENDLESS = 1 << 62
REQUEST_BYTES = 512
"""Of a request in memory: 506 were measured over a million of one segment each."""


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


@dataclass(frozen=True, slots=True)
class Machine:
    """Where cases run: this machine, or under the virtual clock the device that `rates` stand for. A virtual device
    has all of its memory free, and as much host memory as anybody asks for."""

    device: Device
    rates: NamedRates | None = None

    @property
    def is_virtual(self) -> bool:
        return self.rates is not None

    @property
    def clock(self) -> str:
        return "virtual" if self.is_virtual else "wall"

    def free_bytes(self, kind: str) -> int:
        """Memory of a kind of device that a case may take."""
        if not self.is_virtual:
            return free_memory_bytes(kind)
        return self.device.memory_bytes if kind == self.device.kind else _ENDLESS


def find_machine(measure: MeasureSettings) -> Machine:
    """The machine a suite runs on; `CannotRunError` when it asks for CUDA and there is none."""
    if measure.clock == "wall":
        return Machine(find_device(measure.device))
    virtual = virtual_device(measure.virtual_device or DEFAULT_DEVICE)
    given = measure.cost_model
    return Machine(virtual.device, roofline(virtual) if given in (None, "roofline") else read_rates(str(given)))


def find_device(wanted: str) -> Device:
    """The real device; `CannotRunError` when the suite asks for CUDA and there is none."""
    device = detect()
    if wanted == "cuda" and device.kind != "cuda":
        raise CannotRunError("this suite wants a CUDA device and there is none here", hint="use -a measure.device=cpu")
    return detect("cpu") if wanted == "cpu" else device


def resolve_model_settings(model: ModelSettings, device: Device) -> tuple[ModelSettings, ModelGeometry]:
    """The model by name, `auto` replaced; a checkpoint needs its folder."""
    name = auto_model(device.kind, device.memory_bytes) if model.name == "auto" else model.name
    if model.weights != "checkpoint":
        geometry = resolve_model(name)
    elif Path(name).is_dir():
        geometry = geometry_from_folder(name)  # also where a preset has the same name
    else:
        raise UsageError(
            f'model.weights = "checkpoint" needs a folder with safetensors, and {name!r} is none',
            hint='give the folder as model.name, or use weights = "random"',
        )
    return model.model_copy(update={"name": name}), geometry


def check_model_folder(name: str, weights: str) -> None:
    """Raise the `UsageError` of a folder that the engine could not run, so that no sample fails for it; a preset
    needs no check. This imports torch."""
    if weights != "checkpoint" and name.lower() in preset_names():
        return
    from kvbench.engine.model import check_folder

    check_folder(name, has_weights=weights == "checkpoint")


def check_requests_fit(workload: WorkloadSettings) -> None:
    """Refuse to draw more requests than free memory can list: Linux would kill the process half-way."""
    need, free = workload.requests * REQUEST_BYTES, free_memory_bytes("cpu")
    if workload.source == "synthetic" and need > free:
        raise CannotRunError(
            f"{workload.requests:,} requests take {format_bytes(need)} to list, and {format_bytes(free)} is free",
            hint="make workload.requests smaller",
        )


def resolve_engine(engine: EngineSettings, machine: Machine, auto_kv_bytes: int | None) -> EngineSettings:
    """Every `auto` of the engine replaced, `max_context` apart (it is the model's own)."""
    update: dict[str, object] = {}
    update["attention"] = resolve_attention(engine.attention, machine)
    if engine.weight_dtype == "auto":
        update["weight_dtype"] = WEIGHT_DTYPE[machine.device.kind]
    if engine.kv_memory == "auto":
        update["kv_memory"] = auto_kv_bytes
    return engine.model_copy(update=update)


def resolve_attention(name: str, machine: Machine) -> str:
    """The attention backend by name, `auto` replaced; numba is the CPU's. Under the virtual clock none runs, and what
    is asked for stays as it is."""
    if machine.is_virtual:
        return name
    device = machine.device
    if name == "numba" and device.kind != "cpu":
        raise UsageError('attention = "numba" runs on a CPU only', hint='use attention = "auto"')
    return ATTENTION[device.kind] if name == "auto" else name


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
    blocks = kernel.batch * -(-kernel.context // kernel.block_size)
    stored = blocks * block_bytes(geometry, kernel.kv_dtype, kernel.block_size, kernel.kv_scales)
    raw = kernel.batch * kernel.context * int(kv_bytes_per_token(geometry, "fp32"))
    return Memory(0, stored, 0, 2 * raw)


def context_limit(engine: EngineSettings, geometry: ModelGeometry) -> int:
    """Longest sequence, tokens: the setting, never above the model's own."""
    if engine.max_context == "auto":
        return geometry.max_context
    if int(engine.max_context) > geometry.max_context:
        raise UsageError(
            f"max_context {engine.max_context} is beyond the {geometry.max_context} tokens of {geometry.name}",
            hint=f"use at most {geometry.max_context}",
        )
    return int(engine.max_context)


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
    one = pool_layout(geometry, engine.kv_dtype, engine.block_size).block_bytes
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


def cannot_serve(engine: EngineSettings, geometry: ModelGeometry) -> str | None:
    """Why these settings do not go with this model; None when they do."""
    if all(group.window is None for group in geometry.groups):
        return None
    tails = f"the sliding-window layers of {geometry.name} keep only the tails of prefixes"
    if engine.offload != "none":
        return f'offload = "{engine.offload}" keeps whole prefixes, and {tails}; use offload = "none" with this model'
    if engine.preemption != "recompute":
        return (
            f'preemption = "{engine.preemption}" copies whole sequences, and {tails}; use "recompute" with this model'
        )
    if engine.partial_block_reuse and engine.prefix_cache != "none":
        return f"partial_block_reuse goes by whole prefixes, and {tails}; switch it off for this model"
    return None


def too_long(workload: Workload, engine: EngineSettings, geometry: ModelGeometry) -> tuple[int, str]:
    """How many requests can never be served (longer than the model, or than an empty pool), and the arithmetic."""
    limit = context_limit(engine, geometry)
    layout = pool_layout(geometry, engine.kv_dtype, engine.block_size, engine.kv_scales)
    blocks = int(engine.kv_memory) // (layout.block_bytes + draft_block_bytes(geometry, engine))
    piece = largest_piece(engine.allocator, blocks)
    slides = engine.allocator == "paged"
    endless = layout.longest_sequence(piece, step_tokens(engine) if slides else None)
    pool = limit if endless is None else endless
    if engine.reblock_to != "none":
        pool = min(pool, _tokens_after_reblocking(engine, geometry, layout.block_bytes * (blocks + 1)))
    if reserves_maximum(engine) and pool < limit:
        pool = 0  # every sequence reserves the longest, and not even one of those fits
    most = min(limit, pool)
    count = sum(r.input_tokens + r.output_tokens > most for r in workload.requests)
    held = f"{format_bytes(int(engine.kv_memory))} = {blocks} blocks of {engine.block_size} tokens hold {pool}"
    if reserves_maximum(engine) and not pool:
        held = f"{format_bytes(int(engine.kv_memory))} cannot hold one reservation of {limit} tokens"
    elif piece < blocks:
        held = f"{held} in the largest piece of {piece} blocks"
    return count, f"the longest sequence that can be served is {most} tokens (context limit {limit}; {held})"


def _tokens_after_reblocking(engine: EngineSettings, geometry: ModelGeometry, pool_bytes: int) -> int:
    """Longest sequence in blocks of the other size in the same bytes, the null block among them."""
    layout = pool_layout(geometry, engine.kv_dtype, int(engine.reblock_to), engine.kv_scales)
    return layout.longest_sequence(pool_bytes // layout.block_bytes - 1) or 0


def cannot_speculate(workload: WorkloadSettings, engine: EngineSettings, machine: Machine) -> str | None:
    """Why these requests cannot be speculated on here; None when they can, or nobody speculates."""
    if engine.speculation == "none":
        return None
    if workload.sampling.beams > 1:
        return "beams are several continuations, and speculation drafts one: set speculation or sampling.beams to none"
    if machine.is_virtual:
        is_declared = engine.acceptance_rate is not None
        return None if is_declared else "under the virtual clock speculation needs acceptance_rate, as in 0.7"
    if engine.acceptance_rate is not None:
        return "acceptance_rate is declared for the virtual clock; here the model finds out which drafts are right"
    if workload.outputs == "forced":
        return 'no draft can guess forced outputs: set workload.outputs = "sampled", or use the virtual clock'
    return None


def cannot_branch(workload: WorkloadSettings, engine: EngineSettings) -> str | None:
    """Why requests of several sequences cannot be served under these settings; None when they can, or are of one."""
    sampling = workload.sampling
    width, what = (sampling.n, "samples") if sampling.n > 1 else (sampling.beams, "beams")
    if width == 1:
        return None
    if width > engine.max_sequences:
        return f"{width} {what} of a request are {width} sequences, and max_sequences is {engine.max_sequences}"
    if engine.allocator != "paged":
        return f'{what} of a request share blocks, which allocator = "{engine.allocator}" cannot'
    return None


def cannot_reblock(workload: Workload, engine: EngineSettings, geometry: ModelGeometry, machine: Machine) -> str | None:
    """Why the pool could never be re-blocked as `reblock_to` asks; None when it can, or nobody asks."""
    if engine.reblock_to == "none":
        return None
    if machine.is_virtual:
        return "reblock_to moves real contents, which the virtual clock does not have"
    if any(group.kind == "window" for group in geometry.groups):
        return f"reblock_to keeps whole sequences, and {geometry.name} has sliding-window layers"
    if engine.reblock_after >= len(workload.requests):
        return f"reblock_after is {engine.reblock_after}, and the workload has {len(workload.requests)} requests"
    return None


def fingerprint(case: Case, resolved: dict[str, object], geometry: ModelGeometry | None) -> str:
    """Digest of all that decides a sample's numbers besides chance: settings as resolved, model, code, device."""
    facts = {"case_id": case.case_id, "geometry": asdict(geometry) if geometry else None, **resolved}
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()[:32]


def checkpoint_digest(folder: Path) -> str:
    """Names, sizes and headers of a checkpoint's files: the tensors themselves may be hundreds of gigabytes."""
    total = hashlib.sha256()
    for path in sorted([*folder.glob("*.safetensors"), *folder.glob("*.json")]):
        stat = path.stat()
        with path.open("rb") as file:
            total.update(f"{path.name} {stat.st_size} {stat.st_mtime_ns}".encode() + file.read(1 << 16))
    return total.hexdigest()
