"""What is known about a device."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Device:
    """One device. Rates are dense (no sparsity) with float32 accumulation; None where the datasheet has none.

    `tensor_clock_hz` is the clock behind the tensor rates. `memory_bytes` is what the driver reports,
    `advertised_memory` what the datasheet prints. Bandwidths are bytes per second; `pcie` and `nvlink` are both
    directions together, as datasheets print them. `cores` is a CPU's physical cores.
    """

    name: str
    kind: str
    memory_bytes: int
    advertised_memory: str = ""
    datasheet: str = ""
    aliases: tuple[str, ...] = ()
    bandwidth_bytes_per_s: float | None = None
    sms: int | None = None
    tensor_clock_hz: float | None = None
    compute_capability: str | None = None
    l2_bytes: int | None = None
    bf16_flops: float | None = None
    fp8_flops: float | None = None
    pcie_bytes_per_s: float | None = None
    nvlink_bytes_per_s: float | None = None
    cores: int | None = None
