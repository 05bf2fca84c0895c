"""The device at hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

from kvbench.devices.facts import Device
from kvbench.devices.host import Host
from kvbench.devices.lookup import known_device
from kvbench.devices.nvml import Nvml, open_nvml
from kvbench.errors import CannotRunError, UsageError


def detect(
    wanted: Literal["auto", "cpu", "cuda"] = "auto", *, host: Host | None = None, nvml_module: Any = None
) -> Device:
    """The first CUDA device where there is one and it is wanted, else the CPU. Never imports torch.

    Raises `CannotRunError` when CUDA is asked for and none answers, or when the CPU's memory cannot be read.
    """
    gpu = None if wanted == "cpu" else _detect_cuda(nvml_module)
    if gpu is not None:
        return gpu
    if wanted == "cuda":
        raise CannotRunError("no CUDA device answers on this machine", hint="use --device cpu, or check nvidia-smi")
    return _detect_cpu(host or Host())


def _detect_cpu(host: Host) -> Device:
    memory = host.memory_bytes()
    if memory is None:
        raise CannotRunError("cannot read this machine's memory", hint="give it, as in --memory 16GiB")
    return Device(host.cpu_model(), "cpu", memory, cores=host.physical_cores(), datasheet="read from this machine")


def _detect_cuda(module: Any) -> Device | None:
    with open_nvml(module) as nvml:
        handles = nvml.handles() if nvml else []
        return _describe(nvml, handles[0]) if nvml and handles else None


def _describe(nvml: Nvml, handle: Any) -> Device | None:
    """What the driver says, over what the table knows of a device of that name."""
    total, _ = nvml.memory_bytes(handle)
    name = nvml.read("nvmlDeviceGetName", handle)
    if not total or not isinstance(name, str):
        return None
    facts = _facts(name, total)
    return replace(
        facts,
        name=name,
        kind="cuda",
        memory_bytes=total,
        sms=nvml.sm_count(handle) or facts.sms,
        compute_capability=nvml.compute_capability(handle) or facts.compute_capability,
    )


def _facts(name: str, memory_bytes: int) -> Device:
    try:
        return known_device(name)
    except UsageError:
        return Device(name, "cuda", memory_bytes, datasheet="read from this machine")
