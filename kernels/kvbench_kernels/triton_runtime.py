"""What the Triton kernels share: the interpreter's flag, where a tile's rows are and how they are loaded, decoding of
stored tiles, dot products, base-2 softmax parts, and what a launch is specialised to.

Triton's interpreter computes with numpy, which has neither bf16 nor fp8. What it does silently wrong (Triton 3.9), and
what is done here about it:

* a bf16 `tl.dot` is wrong by orders of magnitude: operands are widened to float32 under the interpreter;
* int8 to bf16 likewise: int8 goes through float32 (fp16: through its bits), there and on a GPU;
* float32 to bf16 cuts instead of rounding: `narrowed` rounds first;
* an fp8 NaN reads as a number (480 or more), and float32 to fp8 does not round properly: tests poison what must not be
  read by NaN in wider dtypes or in the scales, and a kernel that stores fp8 must round by itself.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from kvbench_kernels.specs import CompileSpec

INTERPRETED = bool(triton.knobs.runtime.interpret)
"""Whether kernels run in Triton's interpreter (`TRITON_INTERPRET=1` when triton was imported)."""
WIDEN_OPERANDS = tl.constexpr(INTERPRETED)

NO_WINDOW = (1 << 31) - 1
"""Window of a layer that sees everything; the numba kernels' larger one is clamped to it (`window_of`)."""
TRITON_NAMES = {
    "fp32": "fp32",
    "fp16": "fp16",
    "bf16": "bf16",
    "fp8_e4m3": "fp8e4nv",
    "fp8_e5m2": "fp8e5",
    "int8": "i8",
}
"""The store's names of dtypes in Triton's signatures."""
_LOG2E, _TWO_LOG2E = tl.constexpr(1.4426950408889634), tl.constexpr(2.8853900817779268)


@triton.jit
def decoded(stored, dtype: tl.constexpr):
    """A tile as it was loaded (fp32, fp16, bf16, fp8 or int8), in the dtype of the arithmetic."""
    if stored.dtype == dtype:
        values = stored
    elif stored.dtype == tl.float8e4nv or stored.dtype == tl.float8e5:
        values = stored.to(dtype)
    elif stored.dtype == tl.int8 and dtype == tl.float16:  # 1152 + x: a step of fp16's last place is 1 there
        values = (stored.to(tl.int16) + 0x6480).to(tl.float16, bitcast=True) - 1152.0
    else:
        values = narrowed(stored.to(tl.float32), dtype)
    return values


@triton.jit
def narrowed(x, dtype: tl.constexpr):
    """float32 in `dtype` (fp32, fp16 or bf16), rounded to nearest even."""
    if WIDEN_OPERANDS and dtype == tl.bfloat16:
        bits = x.to(tl.int32, bitcast=True)
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & -65536
        x = tl.where(x == x, rounded.to(tl.float32, bitcast=True), x)
    return x.to(dtype)


@triton.jit
def dot(a, b, acc):
    """`acc + a @ b` in float32; a and b of one dtype."""
    if WIDEN_OPERANDS:
        a, b = a.to(tl.float32), b.to(tl.float32)
    return tl.dot(a, b, acc, input_precision="ieee")


@triton.jit
def scores_base2(raw, scale, cap, HAS_CAP: tl.constexpr):
    """log2(e) · score, from q · k: `scale` times that, then, with a cap, cap · tanh(score / cap)."""
    if HAS_CAP:
        exponential = tl.exp2(raw * (scale * _TWO_LOG2E / cap))
        scores = cap * _LOG2E * (1.0 - 2.0 / (exponential + 1.0))
    else:
        scores = raw * (scale * _LOG2E)
    return scores


@triton.jit
def piece_of(tile, starts, pieces, ROWS: tl.constexpr, GROUP: tl.constexpr):
    """The piece that owns a tile of the batch: the last whose first tile is not after it."""
    low, high = 0, pieces
    while high - low > 1:
        middle = (low + high) // 2
        if tl.load(starts + middle) * GROUP // ROWS + middle <= tile:
            low = middle
        else:
            high = middle
    return low


@triton.jit
def blocks_of(table, start, tokens, is_read, MASKED: tl.constexpr, BLOCK_SIZE: tl.constexpr, TILE: tl.constexpr):
    """Physical blocks of a tile's tokens, as int64: one where they share it. Entries of unread tokens are not read."""
    if BLOCK_SIZE % TILE == 0:
        block = tl.load(table + start // BLOCK_SIZE)
    elif MASKED:
        block = tl.load(table + tokens // BLOCK_SIZE, mask=is_read, other=0)
    else:
        block = tl.load(table + tokens // BLOCK_SIZE)
    return block.to(tl.int64)


@triton.jit
def tile_of(pointers, is_row, is_column, ROWS_MASKED: tl.constexpr, COLUMNS_MASKED: tl.constexpr):
    """A 2-D load; a mask that hides nothing is left out."""
    if ROWS_MASKED and COLUMNS_MASKED:
        tile = tl.load(pointers, mask=is_row & is_column, other=0.0)
    elif ROWS_MASKED:
        tile = tl.load(pointers, mask=is_row, other=0.0)
    elif COLUMNS_MASKED:
        tile = tl.load(pointers, mask=is_column, other=0.0)
    else:
        tile = tl.load(pointers)
    return tile


def next_power_of_two(n: int) -> int:
    """The least power of two that is no less than n ≥ 1."""
    return 1 << (n - 1).bit_length()


def window_of(window: int) -> int:
    """The window as the kernels take it: an int32 whatever the caller says for "all"."""
    return min(window, NO_WINDOW)


def compile_of(
    kernel: Any,
    pointers: dict[str, str | None],
    integers: dict[str, int],
    floats: tuple[str, ...],
    constants: dict[str, Any],
    num_warps: int,
    num_stages: int,
    varying: tuple[str, ...] = (),
) -> CompileSpec:
    """The compile that a launch with these arguments makes: as Triton's launcher does it, integers that are 1 become
    constants and those that 16 divides are promised, but neither for `varying` (the kernel's `do_not_specialize`).

    `pointers` gives each pointer's element type in Triton's name, None for an argument that is None; pointers are
    promised to be 16-byte aligned, as torch allocates them.
    """
    types: dict[str, str] = {name: f"*{element}" for name, element in pointers.items() if element is not None}
    types |= dict.fromkeys(floats, "fp32") | dict.fromkeys(integers, "i32")
    fixed = {name: None for name, element in pointers.items() if element is None} | constants
    fixed |= {name: 1 for name, value in integers.items() if value == 1 and name not in varying}
    names = kernel.arg_names
    if unknown := (types.keys() | fixed.keys()) ^ set(names):
        raise ValueError(f"arguments that do not match {kernel.fn.__name__}: {', '.join(sorted(unknown))}")
    divided = [name for name, value in integers.items() if value % 16 == 0 and name not in varying]
    return CompileSpec(
        module=kernel.fn.__module__,
        function=kernel.fn.__name__,
        signature={name: "constexpr" if name in fixed else types[name] for name in names},
        constexprs={name: fixed[name] for name in names if name in fixed},
        divisible_by_16=tuple(n for n in names if n not in fixed and (types[n].startswith("*") or n in divided)),
        num_warps=num_warps,
        num_stages=num_stages,
    )
