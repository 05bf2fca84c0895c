"""What the attention kernels of a GPU share on the host: what is refused, which arithmetic a shape takes, and the
numbers of a launch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvbench_kernels.offsets import BYTES, Offsets
from kvbench_kernels.specs import KernelShape
from kvbench_kernels.triton_runtime import next_power_of_two

if TYPE_CHECKING:
    from torch import Tensor

LEAST_DOT = 16
"""Rows, columns and depth that a matrix product on tensor cores takes at least."""
_DTYPE_NAMES = {
    "float32": "fp32",
    "float16": "fp16",
    "bfloat16": "bf16",
    "float8_e4m3fn": "fp8_e4m3",
    "float8_e5m2": "fp8_e5m2",
    "int8": "int8",
}
_V_LIFTS = {"fp8_e5m2": 2.0**15, "fp8_e4m3": 2.0**8, "int8": 2.0**6}
"""Half of what a V scale is the reciprocal of, for rows of magnitude 1."""


def refused(shape: KernelShape, config: Any, sides: tuple[str, str] = ("rows", "tile")) -> str | None:
    """What is wrong with dtypes, with the sides of a program's tile (fields of its `Config`), or with warps; None when
    nothing is."""
    if shape.query_dtype not in ("fp16", "bf16", "fp32") or shape.kv_dtype not in BYTES:
        return f"no kernel for queries of {shape.query_dtype} and KV of {shape.kv_dtype}"
    for name in sides:
        value = getattr(config, name)
        if value < LEAST_DOT or value & (value - 1):
            return f"{name} {value} is not a power of two of {LEAST_DOT} or more"
    if config.warps not in (1, 2, 4, 8, 16) or config.stages < 1:
        return f"{config.warps} warps and {config.stages} stages: warps are a power of two to 16, stages 1 or more"
    return None


def in_float32(shape: KernelShape) -> bool:
    """Whether products of a prefill, or of latent rows, are taken in float32: 16-bit forms that the queries' dtype
    cannot hold."""
    mixed = shape.kv_dtype != shape.query_dtype and BYTES[shape.kv_dtype] > 1
    return mixed or shape.query_dtype == "fp32"


def lift_of(shape: KernelShape) -> float:
    """What weights are multiplied by before they are rounded, and results divided by."""
    lifted = shape.has_block_scales and shape.query_dtype == "fp16"
    return _V_LIFTS.get(shape.kv_dtype, 1.0) if lifted else 1.0


def padded(elements: int) -> int:
    """A tile's width for rows of so many elements."""
    return max(LEAST_DOT, next_power_of_two(max(1, elements)))


def dtype_name(tensor: Tensor) -> str:
    """A tensor's dtype by the store's name."""
    return _DTYPE_NAMES[str(tensor.dtype).removeprefix("torch.")]


def shape_of(
    q: Tensor,
    data: Tensor,
    scales: Tensor | None,
    kv_heads: int,
    k_dim: int,
    v_dim: int,
    block_size: int,
    has_window: bool,
    has_cap: bool,
    query_tokens: int = 0,
) -> KernelShape:
    """The shape of a launch, as far as a variant depends on it."""
    return KernelShape(
        query_dtype=dtype_name(q),
        kv_dtype=dtype_name(data),
        has_block_scales=scales is not None,
        block_size=block_size,
        query_heads=q.shape[1],
        kv_heads=kv_heads,
        k_dim=k_dim,
        v_dim=v_dim,
        layout="hnd",
        batch=0,
        context=0,
        has_window=has_window,
        has_cap=has_cap,
        query_tokens=query_tokens,
    )


def integers(offsets: Offsets, unit: int) -> dict[str, int]:
    """The offsets as the kernel takes them."""
    if offsets.block_elements % unit:
        raise ValueError(f"blocks of {offsets.block_elements} elements do not start on multiples of 16 bytes")
    return {
        "block_units": offsets.block_elements // unit,
        "v_base": offsets.v_base,
        "v_stride": offsets.v_stride,
        "block_scales": offsets.block_scales,
        "k_scale_base": offsets.k_scale_base,
        "v_scale_base": offsets.v_scale_base,
        "head_rows": offsets.head_rows,
        "token_rows": offsets.token_rows,
    }
