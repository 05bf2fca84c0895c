"""Which of the configurations that fit to time first: seconds by bytes and occupancy. Torch-free.

A model to put an order on configurations, not a prediction to rely on; nothing here was measured. A program reads its
part of the context; as many run on an SM as the occupancy says, the rest in further waves. By Little's law an SM gets
its share of the bandwidth when enough bytes are on their way: what the resident programs' pipelines hold (stages − 1
tiles each) against bandwidth × latency. Splits fill the SMs and cost a second pass over the partial results.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvbench.geometry.dtypes import storage_dtype

if TYPE_CHECKING:
    from kvbench.devices.facts import Device
    from kvbench.tune.occupancy import Occupancy
    from kvbench_kernels.specs import KernelShape

LATENCY_S = 8e-7
"""From a load to its data under load; assumed, the same for every configuration and device."""
LAUNCH_S = 3e-6
"""A second kernel in a row; assumed."""
WARPS_FOR_TENSOR_CORES = 8
"""Resident warps per SM that keep its four tensor cores busy; assumed."""
LEVEL2_OVER_MEMORY = 2.0
"""Bandwidth of the level 2 cache over that of memory; assumed."""
_SPLITS = (1, 2, 4, 8, 16, 32, 64, 128)
_STATE_BYTES = 4


@dataclass(frozen=True, slots=True)
class Prediction:
    """Seconds, the number of splits they are reached with, and the waves of programs that makes."""

    seconds: float
    splits: int
    waves: int


def predict(
    kernel: str, shape: KernelShape, configuration: Mapping[str, Any], occupancy: Occupancy, device: Device
) -> Prediction | None:
    """The model's answer; None for a kernel that has no model, or a configuration of which no block fits."""
    model = _MODELS.get(kernel)
    return model(shape, configuration, occupancy, device) if model and occupancy.blocks else None


def row_bytes(shape: KernelShape) -> float:
    """Of one token and KV head: K and V as stored, with their scales. A latent row's V is part of its K."""
    stored = storage_dtype(shape.kv_dtype)
    is_latent = shape.kv_heads == 1 and shape.v_dim < shape.k_dim
    elements = shape.k_dim + (0 if is_latent else shape.v_dim)
    scales = stored.scale_bytes * (1 if is_latent else 2) if shape.has_block_scales else 0
    return float(elements * stored.bytes_per_element) + scales


def _decode(
    shape: KernelShape, configuration: Mapping[str, Any], occupancy: Occupancy, device: Device
) -> Prediction | None:
    answers = (_split(shape, configuration, occupancy, device, splits) for splits in _SPLITS)
    return min(answers, key=lambda answer: (answer.seconds, answer.splits))


def _split(
    shape: KernelShape, configuration: Mapping[str, Any], occupancy: Occupancy, device: Device, splits: int
) -> Prediction:
    sms, bandwidth = device.sms or 1, device.bandwidth_bytes_per_s or 1.0
    tile, stages = int(configuration["tile"]), int(configuration["stages"])
    group = shape.query_heads // shape.kv_heads
    head_tiles = -(-group // configuration["head_rows"])
    tiles = -(-shape.context // tile)
    splits = min(splits, tiles)
    tokens = -(-tiles // splits) * tile
    programs = shape.batch * shape.kv_heads * head_tiles * splits
    in_flight = tile * row_bytes(shape) * max(stages - 1, 0.5)
    share = bandwidth / sms

    def wave(resident: int) -> float:
        reached = min(1.0, resident * in_flight / (share * LATENCY_S))
        return resident * tokens * row_bytes(shape) / (share * reached) + 2 * LATENCY_S

    full, rest = divmod(programs, sms * occupancy.blocks)
    seconds = full * wave(occupancy.blocks) + (wave(-(-rest // sms)) if rest else 0.0)
    if splits > 1:
        partial = shape.batch * shape.query_heads * splits * (shape.v_dim + 1) * _STATE_BYTES
        seconds += 2 * partial / bandwidth + LAUNCH_S
    return Prediction(seconds, splits, full + bool(rest))


def _prefill(
    shape: KernelShape, configuration: Mapping[str, Any], occupancy: Occupancy, device: Device
) -> Prediction | None:
    """Matrix products at the datasheet's rate, as far as the resident warps keep the tensor cores busy, or the reads of
    all programs from level 2, whichever takes longer."""
    if not device.bf16_flops:
        return None
    sms, bandwidth = device.sms or 1, device.bandwidth_bytes_per_s or 1.0
    rows = configuration["rows"]
    pairs = shape.query_tokens * shape.query_heads // shape.kv_heads
    programs = shape.batch * shape.kv_heads * -(-pairs // rows)
    seen = shape.context - shape.query_tokens / 2
    flops = 2.0 * rows * seen * (shape.k_dim + shape.v_dim)
    busy = min(1.0, occupancy.warps / WARPS_FOR_TENSOR_CORES)
    waves = -(-programs // (sms * occupancy.blocks))
    compute = waves * occupancy.blocks * flops / (device.bf16_flops / sms * busy)
    reads = programs * seen * row_bytes(shape) / (bandwidth * LEVEL2_OVER_MEMORY)
    return Prediction(max(compute, reads), 1, waves)


_MODELS: dict[str, Callable[[KernelShape, Mapping[str, Any], Occupancy, Device], Prediction | None]] = {
    "decode": _decode,
    "prefill": _prefill,
}
