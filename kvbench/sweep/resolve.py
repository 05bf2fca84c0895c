"""From what a case asks to what this machine will do: model, engine settings, requests; the digest of a checkpoint."""

from __future__ import annotations

import hashlib
from pathlib import Path

from kvbench.devices.facts import Device
from kvbench.engine.automatic import WEIGHT_DTYPE, automatic_attention, why_not_triton
from kvbench.errors import CannotRunError, UsageError
from kvbench.geometry.huggingface import geometry_from_folder
from kvbench.geometry.model import ModelGeometry
from kvbench.geometry.presets import preset_names
from kvbench.geometry.resolve import auto_model, resolve_model
from kvbench.measure.memory import free_memory_bytes
from kvbench.spec.engine import EngineSettings
from kvbench.spec.suite import ModelSettings
from kvbench.spec.workload import WorkloadSettings
from kvbench.sweep.machine import Machine
from kvbench.units import format_bytes

REQUEST_BYTES = 512
"""Of a request in memory: 506 were measured over a million of one segment each."""


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
    """The attention backend by name, `auto` replaced; numba is the CPU's, Triton the GPU's. Under the virtual clock
    none runs, and what is asked for stays as it is."""
    if machine.is_virtual:
        return name
    device = machine.device
    if name == "numba" and device.kind != "cpu":
        raise CannotRunError('attention = "numba" runs on a CPU only', hint='use attention = "auto"')
    if name == "triton" and (reason := why_not_triton(device.kind)) is not None:
        raise CannotRunError(f'attention = "triton" does not run here: {reason}', hint='use attention = "auto"')
    return automatic_attention(device.kind) if name == "auto" else name


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


def checkpoint_digest(folder: Path) -> str:
    """Names, sizes and headers of a checkpoint's files: the tensors themselves may be hundreds of gigabytes."""
    total = hashlib.sha256()
    for path in sorted([*folder.glob("*.safetensors"), *folder.glob("*.json")]):
        stat = path.stat()
        with path.open("rb") as file:
            total.update(f"{path.name} {stat.st_size} {stat.st_mtime_ns}".encode() + file.read(1 << 16))
    return total.hexdigest()
