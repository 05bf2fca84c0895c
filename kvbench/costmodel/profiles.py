"""The devices that a virtual clock can stand for: every GPU of the device table, and a plain CPU."""

from __future__ import annotations

from dataclasses import dataclass

from kvbench.devices.facts import Device
from kvbench.devices.lookup import device_names, known_device
from kvbench.errors import UsageError

DEFAULT_DEVICE = "H100-SXM"
_T, _G = 1e12, 1e9

GENERIC_CPU = Device(
    name="generic-cpu",
    kind="cpu",
    memory_bytes=64 << 30,
    advertised_memory="64 GB DDR5",
    datasheet="no machine in particular: 8 cores at 3 GHz with two 256-bit FMA units each (32 fp32 FLOP a cycle), "
    "two channels of DDR5-5600 (JESD79-5)",
    aliases=("cpu",),
    bandwidth_bytes_per_s=89.6 * _G,
    cores=8,
)
_CPU_FLOPS = 8 * 3e9 * 32


@dataclass(frozen=True, slots=True)
class VirtualDevice:
    """A device with every number that the roofline asks for. `link_bytes_per_s` is one direction of the way to host
    memory: PCIe on a GPU, a memory copy (read and write) on a CPU."""

    device: Device
    memory_bytes_per_s: float
    half_flops: float
    byte_flops: float
    fp32_flops: float
    link_bytes_per_s: float
    parallel_units: int


def virtual_device(name: str) -> VirtualDevice:
    """A known device by name or alias, `cpu` included. `UsageError` for an unknown one and for a bare memory size:
    without bandwidth and FLOP/s nothing can be predicted."""
    if name.strip().lower() in (GENERIC_CPU.name, *GENERIC_CPU.aliases):
        return _cpu(GENERIC_CPU)
    device = known_device(name)
    if not (device.bandwidth_bytes_per_s and device.bf16_flops and device.pcie_bytes_per_s and device.sms):
        raise UsageError(
            f"{device.name}: bandwidth and FLOP/s are not known, so its time cannot be predicted",
            hint=f"one of {', '.join(virtual_device_names())}",
        )
    return VirtualDevice(
        device=device,
        memory_bytes_per_s=device.bandwidth_bytes_per_s,
        half_flops=device.bf16_flops,
        byte_flops=device.fp8_flops or device.bf16_flops,
        fp32_flops=device.bf16_flops / 2,
        link_bytes_per_s=device.pcie_bytes_per_s / 2,
        parallel_units=device.sms,
    )


def virtual_device_names() -> tuple[str, ...]:
    """Names that `virtual_device` knows."""
    return (*device_names(), GENERIC_CPU.name)


def _cpu(device: Device) -> VirtualDevice:
    bandwidth = device.bandwidth_bytes_per_s or 0.0
    return VirtualDevice(device, bandwidth, _CPU_FLOPS, _CPU_FLOPS, _CPU_FLOPS, bandwidth / 2, device.cores or 1)
