"""Append on the GPU: encode K and V of T tokens, with their scales, and scatter them into their slots in one launch.

    for every token t, head h:  block, place = divmod(slots[t], block_size)
        float forms   block[h, place, :] = round(x[t, h, :])
        int8, fp8     s = max|x| / m;  block[h, place, :] = round(x / s);  scale[h, place] = s
        with static scales s is the caller's, one for K and one for V, and no scale is stored

k `[T, kv_heads, k_dim]`, v `[T, kv_heads, v_dim]` fp32, fp16 or bf16, adjacent in the last axis, v_dim 0 for a latent
layer; slots int64 `[T]`; `data` the layer's plane as a flat tensor of stored elements, `scales` the same memory as
float32, None where blocks hold none. Offsets as in `write_numba`: the row of head h at place p is number
h · head_rows + p · token_rows. Block offsets are 64-bit.

**A slot below `block_size` (a negative one, or one of the null block) or beyond the pool stores nothing.** Rows that
pad a CUDA graph's batch have slot −1. Slots of real tokens are checked on the host before.

Bit for bit the same as `write_numba` and the store's torch codec, NaN and infinity included. The narrow forms and bf16
are made of the bits: Triton's own casts saturate or do not by version, and a GPU's NaN has other bits (0x7FFF). x / s
is `div_rn`, for `/` is an approximation on a GPU; the largest |x| is an integer maximum over the bits, which cannot
lose a NaN. e4m3 is stored on every GPU this way, also on those that cannot convert it.

One program has `rows` rows (a token and a head each) of K and of V. Never timed: no GPU has run it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl

from kvbench_kernels.specs import CompileSpec

if TYPE_CHECKING:
    from torch import Tensor

    from kvbench_kernels.specs import KernelShape


@dataclass(frozen=True)
class Config:
    """`rows` per program, a power of two; `warps` that share them."""

    rows: int = 8
    warps: int = 4


DEFAULT = Config()
SPACE: dict[str, tuple[Any, ...]] = {"rows": (1, 2, 4, 8, 16, 32), "warps": (1, 2, 4, 8)}
MOST_ELEMENTS = 128
"""Most elements of a tile per thread: beyond it registers spill."""
PAD_SLOT = -1
"""The slot of a row that is there to fill up a batch."""
FORMS: dict[torch.dtype, str] = {
    torch.float32: "fp32",
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.int8: "int8",
    torch.float8_e4m3fn: "fp8_e4m3",
    torch.float8_e5m2: "fp8_e5m2",
}
_BITS = {"fp32": torch.float32, "fp16": torch.int16, "bf16": torch.int16}
"""What the kernel sees of each form; int8 for all of one byte."""


@triton.jit
def _bfloat_bits(x):
    """Half a unit of the last place kept, less one when that place is even, then cut; a NaN is 0x7FC0."""
    bits = x.to(tl.int32, bitcast=True)
    rounded = (bits + ((bits >> 16) & 1) + 0x7FFF) >> 16
    return tl.where(x != x, 0x7FC0, rounded).to(tl.int16)


@triton.jit
def _half_bits(x):
    """IEEE conversion; a NaN is 0x7E00 with its sign."""
    sign = (x.to(tl.int32, bitcast=True) >> 16) & 0x8000
    bits = x.to(tl.float16).to(tl.int16, bitcast=True)
    return tl.where(x != x, (sign | 0x7E00).to(tl.int16), bits)


@triton.jit
def _int8_bits(x):
    """The nearest whole number, ties to even, at most ±127; NaN is 0. Adding 1.5 · 2^23 puts it into the low bits."""
    x = tl.where(x != x, 0.0, x)
    x = tl.where(x > 127.0, 127.0, x)
    x = tl.where(x < -127.0, -127.0, x)
    return ((x + 12582912.0).to(tl.int32, bitcast=True) - 0x4B400000).to(tl.int8)


@triton.jit
def _fp8_bits(
    x,
    CUT: tl.constexpr,
    REBASE: tl.constexpr,
    LEAST_NORMAL: tl.constexpr,
    ADDER: tl.constexpr,
    ADDER_BITS: tl.constexpr,
    MOST: tl.constexpr,
    INFINITY: tl.constexpr,
):
    """Round to nearest even; what is finite and beyond the largest number (float32 bits `MOST`) becomes that.

    Normal numbers by moving the bits with a rounding carry; subnormal ones by adding the power of two whose last place
    is theirs, which makes the float adder round."""
    bits = x.to(tl.int32, bitcast=True)
    sign = (bits >> 24) & 0x80
    size = bits & 0x7FFFFFFF
    kept = tl.where(size > MOST, MOST, size)
    normal = (kept + ((kept >> CUT) & 1) + REBASE) >> CUT
    subnormal = (kept.to(tl.float32, bitcast=True) + ADDER).to(tl.int32, bitcast=True) - ADDER_BITS
    finite = tl.where(size < LEAST_NORMAL, subnormal, normal)
    special = tl.where(size > 0x7F800000, 0x7F, INFINITY)
    return (sign | tl.where(size >= 0x7F800000, special, finite)).to(tl.int8)


@triton.jit
def _encoded(x, FORM: tl.constexpr):
    """float32 → what is stored of it."""
    if FORM == "fp16":
        bits = _half_bits(x)
    elif FORM == "bf16":
        bits = _bfloat_bits(x)
    elif FORM == "int8":
        bits = _int8_bits(x)
    elif FORM == "fp8_e4m3":
        bits = _fp8_bits(x, 20, -1006108673, 0x3C800000, 16384.0, 0x46800000, 0x43E00000, 0x7F)
    elif FORM == "fp8_e5m2":
        bits = _fp8_bits(x, 21, -938475521, 0x38800000, 128.0, 0x43000000, 0x47600000, 0x7C)
    else:
        bits = x
    return bits


@triton.jit
def _put_rows(
    x,
    x_offsets,
    is_stored,
    data,
    row_starts,
    scales,
    scale_offsets,
    tensor_scale,
    DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    FORM: tl.constexpr,
    HAS_SCALES: tl.constexpr,
    IS_STATIC: tl.constexpr,
    MOST: tl.constexpr,
):
    """Encode rows of DIM elements and store them with their scales."""
    d = tl.arange(0, WIDTH)
    mask = is_stored[:, None] & (d < DIM)[None, :]
    rows = tl.load(x + x_offsets[:, None] + d[None, :], mask=mask, other=0.0).to(tl.float32)
    if HAS_SCALES:
        widest = tl.max(rows.to(tl.int32, bitcast=True) & 0x7FFFFFFF, axis=1)
        scale = tl.div_rn(widest.to(tl.float32, bitcast=True), tl.full(widest.shape, MOST, tl.float32))
        is_usable = (scale > 0.0) & (scale < float("inf"))
        divisor = tl.where(is_usable, scale, 1.0)
        rows = tl.where(is_usable[:, None], rows, 0.0)
        rows = tl.div_rn(rows, tl.broadcast_to(divisor[:, None], rows.shape))
        tl.store(scales + scale_offsets, scale, mask=is_stored)
    if IS_STATIC:
        rows = tl.div_rn(rows, tl.full(rows.shape, 1.0, tl.float32) * tensor_scale)
    tl.store(data + row_starts[:, None] + d[None, :], _encoded(rows, FORM), mask=mask)


@triton.jit
def _write(
    k,
    v,
    data,
    scales,
    slots,
    k_token,
    k_head,
    v_token,
    v_head,
    rows,
    kv_heads,
    slot_limit,
    block_elements,
    v_base,
    block_scales,
    k_scale_base,
    v_scale_base,
    head_rows,
    token_rows,
    k_tensor_scale,
    v_tensor_scale,
    K_DIM: tl.constexpr,
    V_DIM: tl.constexpr,
    K_WIDTH: tl.constexpr,
    V_WIDTH: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    FORM: tl.constexpr,
    HAS_SCALES: tl.constexpr,
    IS_STATIC: tl.constexpr,
    MOST: tl.constexpr,
    ROWS: tl.constexpr,
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    t = (row // kv_heads).to(tl.int64)
    h = row - t * kv_heads
    slot = tl.load(slots + t, mask=row < rows, other=-1)
    is_stored = (slot >= BLOCK_SIZE) & (slot < slot_limit)
    block = slot // BLOCK_SIZE
    place = h * head_rows + (slot - block * BLOCK_SIZE) * token_rows
    start = block * block_elements
    scale_place = block * block_scales + place
    _put_rows(
        k,
        t * k_token + h * k_head,
        is_stored,
        data,
        start + place * K_DIM,
        scales,
        scale_place + k_scale_base,
        k_tensor_scale,
        K_DIM,
        K_WIDTH,
        FORM,
        HAS_SCALES,
        IS_STATIC,
        MOST,
    )
    if V_DIM > 0:
        _put_rows(
            v,
            t * v_token + h * v_head,
            is_stored,
            data,
            start + v_base + place * V_DIM,
            scales,
            scale_place + v_scale_base,
            v_tensor_scale,
            V_DIM,
            V_WIDTH,
            FORM,
            HAS_SCALES,
            IS_STATIC,
            MOST,
        )


MOST_NUMBER = {"int8": 127.0, "fp8_e4m3": 448.0, "fp8_e5m2": 57344.0}
"""The largest number of each narrow form."""


def write(
    k: Tensor,
    v: Tensor,
    data: Tensor,
    scales: Tensor | None,
    slots: Tensor,
    block_size: int,
    block_elements: int,
    v_base: int,
    block_scales: int,
    k_scale_base: int,
    v_scale_base: int,
    head_rows: int,
    token_rows: int,
    tensor_scales: tuple[float, float] | None = None,
    config: Config = DEFAULT,
) -> None:
    """Shapes as above; `tensor_scales` are the static ones of K and V (narrow forms without scales in their blocks)."""
    tokens, kv_heads, k_dim = k.shape
    v_dim, form = v.shape[2], FORMS[data.dtype]
    rows = tokens * kv_heads
    if rows == 0:
        return
    k, v = (x if x.stride(-1) == 1 or x.shape[-1] <= 1 else x.contiguous() for x in (k, v))
    bits = data.view(_BITS.get(form, torch.int8))
    _write[(triton.cdiv(rows, config.rows),)](
        k,
        v if v_dim else k,
        bits,
        bits if scales is None else scales,
        slots,
        k.stride(0),
        k.stride(1),
        v.stride(0),
        v.stride(1),
        rows,
        kv_heads,
        data.numel() // block_elements * block_size,
        block_elements,
        v_base,
        block_scales,
        k_scale_base,
        v_scale_base,
        head_rows,
        token_rows,
        *(tensor_scales or (1.0, 1.0)),
        **_constants(form, scales is not None, tensor_scales is not None, k_dim, v_dim, block_size, config),
        num_warps=config.warps,
    )


def _constants(
    form: str, has_scales: bool, is_static: bool, k_dim: int, v_dim: int, block_size: int, config: Config
) -> dict[str, Any]:
    return {
        "K_DIM": k_dim,
        "V_DIM": v_dim,
        "K_WIDTH": triton.next_power_of_2(k_dim),
        "V_WIDTH": triton.next_power_of_2(max(1, v_dim)),
        "BLOCK_SIZE": block_size,
        "FORM": form,
        "HAS_SCALES": has_scales,
        "IS_STATIC": is_static,
        "MOST": MOST_NUMBER.get(form, 1.0),
        "ROWS": config.rows,
    }


def allowed(shape: KernelShape, config: Config) -> str | None:
    """Why a configuration is not worth compiling; None when it is."""
    elements = config.rows * triton.next_power_of_2(max(shape.k_dim, shape.v_dim))
    if elements > MOST_ELEMENTS * config.warps * 32:
        return f"{config.rows} rows of {max(shape.k_dim, shape.v_dim)} are too many for {config.warps} warps"
    if elements < config.warps * 32:
        return f"{config.warps} warps have nothing to do with {elements} elements"
    return None


def compile_spec(shape: KernelShape, config: Config) -> CompileSpec:
    """The compile that `write` asks for: K and V as parts of one projection, whose strides are multiples of 16."""
    is_latent = shape.v_dim < shape.k_dim and shape.kv_heads == 1
    v_dim = 0 if is_latent else shape.v_dim
    is_static = shape.kv_dtype in MOST_NUMBER and not shape.has_block_scales
    constants = _constants(
        shape.kv_dtype, shape.has_block_scales, is_static, shape.k_dim, v_dim, shape.block_size, config
    )
    element = {"fp32": "*fp32", "fp16": "*i16", "bf16": "*i16"}.get(shape.kv_dtype, "*i8")
    scales = "*fp32" if shape.has_block_scales else element
    x = f"*{shape.query_dtype}"
    pointers = {"k": x, "v": x, "data": element, "scales": scales, "slots": "*i64"}
    strides = dict.fromkeys(("k_token", "k_head", "v_token", "v_head"), "i32")
    sizes = dict.fromkeys(("rows", "kv_heads", "slot_limit", "block_elements", "v_base", "block_scales"), "i32")
    places = dict.fromkeys(("k_scale_base", "v_scale_base", "head_rows", "token_rows"), "i32")
    static = dict.fromkeys(("k_tensor_scale", "v_tensor_scale"), "fp32")
    ones = {name: 1 for name, value in _ones(shape).items() if value == 1}
    signature = {**pointers, **strides, **sizes, **places, **static, **dict.fromkeys(constants, "constexpr")}
    signature.update(dict.fromkeys(ones, "constexpr"))
    even = [*pointers, "block_elements"]
    if shape.k_dim % 16 == 0 and v_dim % 16 == 0:
        even += [*strides, "v_base"]
    return CompileSpec(
        module="kvbench_kernels.write_triton",
        function="_write",
        signature=signature,
        constexprs={**constants, **ones},
        divisible_by_16=tuple(name for name in even if name not in ones),
        num_warps=config.warps,
        num_stages=1,
    )


def _ones(shape: KernelShape) -> dict[str, int]:
    """Arguments that Triton compiles in where they are 1."""
    is_hnd = shape.layout == "hnd"
    return {
        "kv_heads": shape.kv_heads,
        "head_rows": shape.block_size if is_hnd else 1,
        "token_rows": 1 if is_hnd else shape.kv_heads,
    }
