"""Latent attention (MLA, absorbed): every query head against one paged row a token, whose front is its V.

    out[t, h] = Σ_j softmax_j(scale · q[t, h] · row_j) row_j[:rank]      over the tokens j ≤ position(t) of t's sequence

q `[T, query_heads, k_dim]`, one row of k_dim = rank + rope elements a token, out `[T, query_heads, rank]`; `scales` one
per token; all else as in `prefill_triton`. Without `starts` row t of q is the last token of context t: a decode, T = S.
With them the same kernel does prefill, since heads and tokens are both rows of one matrix here.

Decisions
* A row is loaded once, front and rest in two tiles (512 + 64 are powers of two, 576 is not), and its front serves for
  the scores, transposed, and for the values. Bytes per context are those of the rows alone.
* Split-KV: the context of a decode is cut into `splits` runs of whole tiles, a run-time number, and merged by the
  decode page's second kernel. With one split the kernel divides and stores itself; a prefill has one.
* A program has `rows` pairs (token, query head). More rows share a load of a latent row, and each costs 512 float32 of
  accumulator in registers: 16 or 32 fit, 64 spill.
* A static scale is the caller's: it belongs into `scale`, and the same number is `v_scale`.

Versions tried: there was no GPU to time them on. Registers per thread / bytes of stack (spills) / KiB of shared memory
as compiled offline by Triton 3.9 for rows of 512 + 64 in blocks of 64, decode, as rows/tile/warps/stages:

                       sm_80 bf16      int8            sm_90 bf16      int8
    16/32/4/2          199   0  55     255   0  52     138   0  55     255 208  52
    16/32/8/2          103   0  55     174   0  52     100   0  55     210   0  52    up to 16 heads, and 8-bit rows
    32/32/8/2          183   0  75     255   0  70     175   0  74     255   0  70    16-bit rows; int8 prefill spills 8
    64/16/8/2          255   8  92     255 120  89     255  80 128     255 400 128
    64/32/8/2          255  56 112     255 168 106     255 128 144     255 456 128
    64/32/16/2         128 104 112     128 256 106     128 400 144     128 1016 128
    64/64/8/2          255 128 152     255 128 140     255 312 216     255 424 181

    16 and 32 rows are mma.sync, 64 are warp-group products on sm_90, whose accumulator of 64 × 512 leaves no registers.
    The defaults for one query token and 128 heads in blocks of 16, without window, sinks and cap, are compiled anew by
    `benchmarks/compile_space.py --shipped` for sm_80, sm_90 and sm_100, and by `tests/tune/test_shipped.py` for sm_90:
    they must not spill. Whether they do with those, or with query starts, is not checked.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import triton
import triton.language as tl

from kvbench_kernels.decode_triton import merge, scratch_for
from kvbench_kernels.offsets import BYTES, Offsets, block_offsets
from kvbench_kernels.specs import CompileSpec, KernelShape
from kvbench_kernels.triton_launches import in_float32, integers, lift_of, padded, refused, shape_of
from kvbench_kernels.triton_runtime import (
    NO_WINDOW,
    TRITON_NAMES,
    blocks_of,
    compile_of,
    decoded,
    dot,
    narrowed,
    piece_of,
    scores_base2,
    tile_of,
    window_of,
)

if TYPE_CHECKING:
    from torch import Tensor

_VARYING = ("pieces", "width", "splits", "window", "k_scale_base")
_LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit(do_not_specialize=_VARYING)
def paged_mla(
    q,
    data,
    scales,
    tables,
    lengths,
    starts,
    sinks,
    out,
    partial,
    partial_lse,
    pieces,
    width,
    splits,
    window,
    scale,
    cap,
    v_scale,
    q_stride,
    q_head_stride,
    block_units,
    block_scales,
    k_scale_base,
    token_rows,
    HEADS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    K_DIM: tl.constexpr,
    RANK: tl.constexpr,
    RANK_BLOCK: tl.constexpr,
    ROPE_BLOCK: tl.constexpr,
    UNIT: tl.constexpr,
    LIFT: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_CAP: tl.constexpr,
    IN_FLOAT32: tl.constexpr,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
):
    # Which rows, as in prefill; the splits of a tile of rows run side by side.
    split = tl.program_id(0) % splits
    tile = tl.program_id(0) // splits
    if starts is None:
        piece = tile // ((HEADS + ROWS - 1) // ROWS)
        tile = tile % ((HEADS + ROWS - 1) // ROWS)
        begin, count = piece, 1
    else:
        tile += tl.load(starts) * HEADS // ROWS
        piece = piece_of(tile, starts, pieces, ROWS, HEADS)
        begin = tl.load(starts + piece)
        count = tl.load(starts + piece + 1) - begin
        tile = tl.cdiv(count * HEADS, ROWS) - 1 - (tile - begin * HEADS // ROWS - piece)
    if tile < 0:
        return
    length = tl.load(lengths + piece)
    pairs = tile * ROWS + tl.arange(0, ROWS)
    tokens_of_q = pairs // HEADS
    is_row = tokens_of_q < count
    positions = length - count + tokens_of_q
    row_of_q = begin.to(tl.int64) * HEADS + pairs
    of_v, of_rope = tl.arange(0, RANK_BLOCK), tl.arange(0, ROPE_BLOCK)
    is_v, is_rope = (of_v < RANK)[None, :], (of_rope < K_DIM - RANK)[None, :]
    token64 = (begin + tokens_of_q).to(tl.int64)
    q_at = q + (token64 * q_stride + pairs % HEADS * q_head_stride)[:, None]
    front = tile_of(q_at + of_v[None, :], is_row[:, None], is_v, True, RANK < RANK_BLOCK)
    rest = tile_of(q_at + RANK + of_rope[None, :], is_row[:, None], is_rope, True, K_DIM - RANK < ROPE_BLOCK)
    if IN_FLOAT32:
        front, rest = front.to(tl.float32), rest.to(tl.float32)

    # Which keys: of [first, end) seen by some row and [full, part) by every one, this split's tiles.
    earliest = length - count + tile * ROWS // HEADS
    latest = tl.minimum(length - count + (tile * ROWS + ROWS - 1) // HEADS, length - 1)
    end = latest + 1
    first, full = 0, 0
    if HAS_WINDOW:
        first = tl.maximum(earliest - window + 1, 0)
        full = tl.cdiv(tl.maximum(latest - window + 1, 0), TILE) * TILE
    part = tl.maximum((earliest + 1) // TILE * TILE, full)
    lowest = first // TILE * TILE
    run = tl.cdiv(tl.cdiv(tl.maximum(end - lowest, 0), TILE), splits) * TILE
    from_here = lowest + split * run
    to_here = tl.minimum(from_here + run, end)

    high = tl.full([ROWS], float("-inf"), tl.float32)
    mass = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, RANK_BLOCK], tl.float32)
    table = tables + piece.to(tl.int64) * width

    for phase in tl.static_range(0 if HAS_WINDOW else 1, 3):
        if phase == 0:
            low, beyond = from_here, tl.minimum(full, to_here)
        elif phase == 1:
            low, beyond = tl.maximum(full, from_here), tl.minimum(part, to_here)
        else:
            low, beyond = tl.maximum(part, from_here), to_here
        for start in range(low, beyond, TILE):
            tokens = start + tl.arange(0, TILE)
            is_read = (tokens >= first) & (tokens < end)
            block = blocks_of(table, start, tokens, is_read, phase != 1, BLOCK_SIZE, TILE)
            row = tokens % BLOCK_SIZE * token_rows
            row_at = (data + block * block_units * UNIT + row * K_DIM)[:, None]

            latent = tile_of(row_at + of_v[None, :], is_read[:, None], is_v, phase != 1, RANK < RANK_BLOCK)
            rope = tile_of(
                row_at + RANK + of_rope[None, :], is_read[:, None], is_rope, phase != 1, K_DIM - RANK < ROPE_BLOCK
            )
            latent = decoded(latent, front.dtype)
            s = dot(rest, tl.trans(decoded(rope, rest.dtype)), tl.zeros([ROWS, TILE], tl.float32))
            s = dot(front, tl.trans(latent), s)
            if scales is not None:
                scale_at = (scales + block * block_scales + row + k_scale_base)[None, :]
                token_scales = tile_of(scale_at, True, is_read[None, :], False, phase != 1)
                s *= token_scales
            s = scores_base2(s, scale, cap, HAS_CAP)
            if phase != 1:
                is_seen = is_read[None, :] & (tokens[None, :] <= positions[:, None])
                if HAS_WINDOW:
                    is_seen &= tokens[None, :] > positions[:, None] - window
                s = tl.where(is_seen, s, float("-inf"))

            peak = tl.maximum(high, tl.max(s, 1))
            pivot = peak
            if phase != 1:  # a row that has seen nothing yet
                pivot = tl.where(peak == float("-inf"), 0.0, peak)
            weights = tl.exp2(s - pivot[:, None])
            shrink = tl.exp2(high - pivot)
            mass = mass * shrink + tl.sum(weights, 1)
            high = peak
            if scales is not None:
                weights *= token_scales * LIFT
            acc = dot(narrowed(weights, front.dtype), latent, acc * shrink[:, None])

    is_result = is_row[:, None] & is_v
    if splits == 1:
        if sinks is not None:
            sink = tl.load(sinks + pairs % HEADS) * _LOG2E
            mass += tl.exp2(sink - high)
        result = acc * (v_scale / LIFT) / tl.where(mass == 0.0, 1.0, mass)[:, None]
        tl.store(out + row_of_q[:, None] * RANK + of_v[None, :], narrowed(result, out.dtype.element_ty), mask=is_result)
    elif from_here < to_here:
        place = row_of_q * splits + split
        tl.store(partial + place[:, None] * RANK + of_v[None, :], acc / mass[:, None], mask=is_result)
        tl.store(partial_lse + place, high + tl.log2(mass), mask=is_row)


@dataclass(frozen=True, slots=True)
class Config:
    """`rows` pairs of a token and a query head per program, `tile` keys per iteration."""

    rows: int = 16
    tile: int = 32
    warps: int = 8
    stages: int = 2


DEFAULT = Config()
SPACE: dict[str, tuple[int, ...]] = {
    "rows": (16, 32, 64, 128),
    "tile": (16, 32, 64, 128),
    "warps": (4, 8),
    "stages": (1, 2, 3),
}


def default_for(shape: KernelShape) -> Config:
    """A configuration chosen to spill no register; see above for what of it is compiled."""
    if in_float32(shape):
        return Config(tile=16, stages=1)
    # decoding 8-bit elements takes registers of its own
    fits_twice = BYTES[shape.kv_dtype] > 1 and shape.query_heads > DEFAULT.rows
    return Config(rows=2 * DEFAULT.rows) if fits_twice else DEFAULT


def allowed(shape: KernelShape, config: Config) -> str | None:
    """Why this configuration cannot run the shape, None if it can."""
    if shape.kv_heads != 1 or shape.v_dim >= shape.k_dim:
        return "a latent row is the only KV head's, and its V is the front of its K"
    if refusal := refused(shape, config):
        return refusal
    if shape.query_tokens == 1 and config.rows > padded(shape.query_heads):
        return f"{config.rows} rows for the {shape.query_heads} heads of one token"
    return None


def constants(shape: KernelShape, config: Config) -> dict[str, Any]:
    """What a variant is compiled for."""
    return {
        "HEADS": shape.query_heads,
        "BLOCK_SIZE": shape.block_size,
        "K_DIM": shape.k_dim,
        "RANK": shape.v_dim,
        "RANK_BLOCK": padded(shape.v_dim),
        "ROPE_BLOCK": padded(shape.k_dim - shape.v_dim),
        "UNIT": 16 // BYTES[shape.kv_dtype],
        "LIFT": lift_of(shape),
        "HAS_WINDOW": shape.has_window,
        "HAS_CAP": shape.has_cap,
        "IN_FLOAT32": in_float32(shape),
        "ROWS": config.rows,
        "TILE": config.tile,
    }


def mla(
    q: Tensor,
    data: Tensor,
    scales: Tensor | None,
    tables: Tensor,
    lengths: Tensor,
    starts: Tensor | None,
    sinks: Tensor | None,
    out: Tensor,
    window: int,
    scale: float,
    cap: float,
    v_scale: float,
    kv_heads: int,
    k_dim: int,
    v_dim: int,
    block_size: int,
    block_elements: int,
    v_base: int,
    v_stride: int,
    block_scales: int,
    k_scale_base: int,
    v_scale_base: int,
    head_rows: int,
    token_rows: int,
    splits: int = 1,
    config: Config | None = None,
    scratch: Tensor | None = None,
) -> None:
    """Into `out`, of any float dtype; tensors as in `prefill_triton`, `starts` None for a decode. `scratch` is what the
    decode page's `scratch_for` gives, of the caller where launches must not allocate. `ValueError` for what `allowed`
    refuses, and for splits of a prefill, which has tokens to fill a device with."""
    offsets = Offsets(
        block_size, block_elements, v_base, v_stride, block_scales, k_scale_base, v_scale_base, head_rows, token_rows
    )
    pieces, (tokens, heads) = lengths.shape[0], q.shape[:2]
    is_windowed, query_tokens = window_of(window) < NO_WINDOW, 1 if starts is None else 0
    shape = shape_of(q, data, scales, kv_heads, k_dim, v_dim, block_size, is_windowed, cap > 0, query_tokens)
    config = config or default_for(shape)
    refusal = "a prefill is not split" if starts is not None and splits > 1 else allowed(shape, config)
    if refusal:
        raise ValueError(refusal)
    if pieces == 0 or tokens == 0:
        return
    if scratch is None:
        scratch = scratch_for(pieces, heads, v_dim, splits, q.device)
    fixed = constants(shape, config)
    tiles = pieces * -(-heads // config.rows) if starts is None else tokens * heads // config.rows + pieces
    paged_mla[(tiles * splits,)](
        q,
        data,
        scales,
        tables,
        lengths,
        starts,
        sinks,
        out,
        scratch,
        scratch[tokens * heads * splits * v_dim :],
        pieces,
        tables.stride(0),
        splits,
        window_of(window),
        scale,
        cap,
        v_scale,
        q.stride(0),
        q.stride(1),
        **_integers(offsets, fixed["UNIT"]),
        **fixed,
        num_warps=config.warps,
        num_stages=config.stages,
    )
    if splits > 1:
        merge(scratch, lengths, sinks, out[:pieces], window, v_scale, fixed["LIFT"], splits, config.tile)


def _integers(offsets: Offsets, unit: int) -> dict[str, int]:
    numbers = integers(offsets, unit)
    return {name: numbers[name] for name in ("block_units", "block_scales", "k_scale_base", "token_rows")}


def compile_spec(shape: KernelShape, config: Config) -> CompileSpec:
    """The compile that a launch on a pool of this layer alone makes: of a decode where `query_tokens` is 1."""
    stored, query = TRITON_NAMES[shape.kv_dtype], TRITON_NAMES[shape.query_dtype]
    fixed = constants(shape, config)
    pointers = {
        "q": query,
        "data": stored,
        "scales": "fp32" if shape.has_block_scales else None,
        "tables": "i32",
        "lengths": "i32",
        "starts": None if shape.query_tokens == 1 else "i32",
        "sinks": "fp32" if shape.has_sinks else None,
        "out": query,
        "partial": "fp32",
        "partial_lse": "fp32",
    }
    numbers = dict.fromkeys(_VARYING, 0) | {"q_stride": shape.query_heads * shape.k_dim, "q_head_stride": shape.k_dim}
    numbers |= _integers(block_offsets(shape, is_latent=True), fixed["UNIT"])
    floats = ("scale", "cap", "v_scale")
    return compile_of(paged_mla, pointers, numbers, floats, fixed, config.warps, config.stages, _VARYING)
