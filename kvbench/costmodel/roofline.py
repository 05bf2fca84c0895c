"""Rates from a datasheet: the roofline model (Williams, Waterman, Patterson: Roofline, CACM 52(4), 2009) with the
shares of the two roofs that kernels reach in practice.

The factors are assumptions, the same for every device, and stand here so that they can be argued with; measured rates
replace them through a file (`rates.py`). What they leave out: kernels that reach less on one device than on another,
clocks that drop under load, the tail of a wave of thread blocks, and everything between several devices.
"""

from __future__ import annotations

from kvbench.costmodel.profiles import VirtualDevice
from kvbench.costmodel.rates import NamedRates, Rates

COMPUTE_SHARE = 0.6
"""Of the datasheet's dense tensor rate that a large matrix product reaches."""
ATTENTION_SHARE = 0.45
"""The same for prefill attention, whose exponentials run beside the tensor cores."""
MEMORY_SHARE = 0.8
"""Of the datasheet's bandwidth that streaming kernels reach."""
LINK_SHARE = 0.8
"""Of one direction of the host link that large pinned copies reach."""
DISK_BYTES = 5e9
"""B/s: an NVMe disk on four lanes of PCIe 4.0, whose link carries 7.9e9."""
BLOCK_S = 20e-9
"""One thread block's wait for one block-table entry and the address that follows from it."""

GPU_OVERHEADS = {"step_s": 500e-6, "layer_s": 5e-6, "sequence_s": 1e-6, "transfer_s": 20e-6}
CPU_OVERHEADS = {"step_s": 200e-6, "layer_s": 30e-6, "sequence_s": 2e-6, "transfer_s": 5e-6}


def roofline(device: VirtualDevice) -> NamedRates:
    """Effective rates of a known device, from its datasheet numbers alone.

    8-bit products run at the fp8 rate where there is one, else as 16-bit ones. fp32 runs on a GPU at the TF32 rate,
    half of the 16-bit one on every card of the table, and on a CPU at its own. Thread blocks of the attention kernel
    walk block tables side by side, one per parallel unit (SM or core), so `block_s` is divided by their number.
    """
    memory = device.memory_bytes_per_s * MEMORY_SHARE
    rates = Rates(
        fp32_flops=device.fp32_flops * COMPUTE_SHARE,
        half_flops=device.half_flops * COMPUTE_SHARE,
        byte_flops=device.byte_flops * COMPUTE_SHARE,
        attention_flops=device.half_flops * ATTENTION_SHARE,
        weight_bytes=memory,
        kv_bytes=memory,
        copy_bytes=memory / 2,
        host_bytes=device.link_bytes_per_s * LINK_SHARE,
        disk_bytes=DISK_BYTES,
        block_s=BLOCK_S / device.parallel_units,
        **(CPU_OVERHEADS if device.device.kind == "cpu" else GPU_OVERHEADS),
    )
    return NamedRates(rates, "roofline", f"roofline of {device.device.name}: {device.device.datasheet}")
