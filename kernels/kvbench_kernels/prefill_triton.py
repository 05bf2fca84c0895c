"""Prefill: pieces of contexts against their paged contexts, ragged and chunked.

    out[t, g] = Σ_j softmax_j(scale · q[t, g] · k_j) v_j      over the tokens j ≤ position(t) of t's sequence

Piece s is rows [starts[s], starts[s + 1]) of q `[T, query_heads, k_dim]`, the last tokens of a context of `lengths[s]`
tokens whose K and V are all in the pool already, the piece's own included: what is stored is what is read. Out
`[T, query_heads, v_dim]`; tables int32 `[S, width]`; pool, offsets, window, sinks and cap as in `decode_numba`;
`v_scale` multiplies the output. A piece may be empty, or one token, which is a decode. A row that sees nothing (a slot
of length 0) gives zeros; rows that belong to no piece are not touched.

Decisions
* A tile of query rows is `rows` pairs (token, query head of one KV head), token by token. Against one head per tile
  it reads as much K and V for long pieces (rows / group tokens share a read of K, but group heads do too), wastes less
  on the causal edge, and a short piece or a lone decode still fills its tile.
* Tiles of a ragged batch are numbered over the whole batch: piece s owns those from starts[s] · group / rows + s on,
  and a program finds its piece by bisection. The grid depends on T and S alone, so nothing is asked of the device
  before a launch, and a long piece among many short ones makes no empty programs.
* Tiles of keys begin at multiples of `tile` from token 0, wherever the piece begins: a row's sums are taken in the same
  order however its prompt was cut. Only tiles that some row of the program sees are read, and only those on the
  window's and the causal edge compare positions.
* A block id is multiplied in 64 bits, in units of 16 bytes, which is what blocks are aligned to: the compiler then
  knows that every row can be loaded 16 bytes at a time. A tile within one block reads one entry of the table, not one
  a token.
* Head sizes are padded to a power of two, masked on load and store.
* Narrow forms: the K scale multiplies the score and the V scale the weight. A V scale is the row's largest magnitude
  over that of the dtype, down to 1e-5 for e5m2, which fp16 weights would lose: they carry it times a power of two that
  the output drops.
* q in fp16 or bf16 with KV in the same or in 8 bits is multiplied in q's dtype on tensor cores; any other pair in
  float32, slow and right.

Versions tried: there was no GPU to time them on. Registers per thread / bytes of stack (spills) as compiled offline by
Triton 3.9 (32 / 8 heads, blocks of 16), as rows/tile/warps/stages; "all" has a window, sinks and a cap:

                                sm_80 bf16   int8      sm_90 bf16   int8      sm_100 bf16  int8
    128          64/32/4/2      182   0      255   0   172   0      197   0   142   0      140   0
                 64/64/4/2      255  72      255  64   210   0      245   0   180   0      237   0
                 128/64/8/2     255  72      255  32   182   0      232   0   181   0      224   0
                 64/32/8/2      161   0      178   0   110   0      144   0
    128, all     64/32/4/2      246   0      255  32   184   0      182   0   128   8      128   0
                 64/32/8/2      167   0      216   0   124   0      149   0   116   0      128   0    the default
    256, all     64/32/4/2      255 176      255 256   255  32      255   8
                 32/32/4/2      236   0      255   0   242   0      255  32
                 64/32/8/2      242   0      255   8   201   0      252   0
                 64/16/8/2      217   0      243   0   178   0      221   0    8-bit elements
    128, fp32    64/32/8/2      255  64                255 688
                 16/16/4/1       92   0                 80   0    float32 products, no tensor core

    64 rows are mma.sync on sm_80, warp-group products on sm_90 and tcgen05 on sm_100. K and V are loaded 16 bytes at a
    time, but for 8-bit rows on sm_80, partly in smaller pieces. The defaults without window, sinks and cap, for bf16,
    e4m3, int8 and fp32, are compiled anew by `benchmarks/compile_space.py --shipped`, a part of them by
    `tests/tune/test_shipped.py`, and must not spill; e5m2 and the other rows of this table are in neither.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import triton
import triton.language as tl

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

_VARYING = ("pieces", "width", "window", "k_scale_base", "v_scale_base")
_LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit(do_not_specialize=_VARYING)
def paged_prefill(
    q,
    data,
    scales,
    tables,
    lengths,
    starts,
    sinks,
    out,
    pieces,
    width,
    window,
    scale,
    cap,
    v_scale,
    q_stride,
    q_head_stride,
    block_units,
    v_base,
    v_stride,
    block_scales,
    k_scale_base,
    v_scale_base,
    head_rows,
    token_rows,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    K_DIM: tl.constexpr,
    V_DIM: tl.constexpr,
    K_BLOCK: tl.constexpr,
    V_BLOCK: tl.constexpr,
    UNIT: tl.constexpr,
    V_LIFT: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_CAP: tl.constexpr,
    IN_FLOAT32: tl.constexpr,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
):
    """One tile of query rows of one KV head. `block_units` counts UNIT elements, which are 16 bytes."""
    # Which rows: heads of one tile run side by side, the late tiles of a piece, which see most, first.
    head = tl.program_id(0) % KV_HEADS
    tile = tl.program_id(0) // KV_HEADS + tl.load(starts) * GROUP // ROWS
    piece = piece_of(tile, starts, pieces, ROWS, GROUP)
    begin = tl.load(starts + piece)
    count = tl.load(starts + piece + 1) - begin
    tile = tl.cdiv(count * GROUP, ROWS) - 1 - (tile - begin * GROUP // ROWS - piece)
    if tile < 0:
        return
    length = tl.load(lengths + piece)
    pairs = tile * ROWS + tl.arange(0, ROWS)
    tokens_of_q = pairs // GROUP
    is_row = (tokens_of_q < count)[:, None]
    positions = length - count + tokens_of_q
    query_heads = head * GROUP + pairs % GROUP
    token64 = (begin + tokens_of_q).to(tl.int64)
    of_k, of_v = tl.arange(0, K_BLOCK), tl.arange(0, V_BLOCK)
    q_at = q + (token64 * q_stride + query_heads * q_head_stride)[:, None] + of_k[None, :]
    queries = tile_of(q_at, is_row, (of_k < K_DIM)[None, :], True, K_DIM < K_BLOCK)
    if IN_FLOAT32:
        queries = queries.to(tl.float32)

    # Which keys: [first, end) is seen by some row, [full, part) by every one.
    earliest = length - count + tile * ROWS // GROUP
    latest = tl.minimum(length - count + (tile * ROWS + ROWS - 1) // GROUP, length - 1)
    end = latest + 1
    first, full = 0, 0
    if HAS_WINDOW:
        first = tl.maximum(earliest - window + 1, 0)
        full = tl.cdiv(tl.maximum(latest - window + 1, 0), TILE) * TILE
    part = tl.maximum((earliest + 1) // TILE * TILE, full)

    if sinks is None:
        high = tl.full([ROWS], float("-inf"), tl.float32)
        mass = tl.zeros([ROWS], tl.float32)
    else:
        high = tl.load(sinks + query_heads) * _LOG2E
        mass = tl.full([ROWS], 1.0, tl.float32)
    acc = tl.zeros([ROWS, V_BLOCK], tl.float32)
    table = tables + piece.to(tl.int64) * width

    # Keys on the window's edge, keys that every row sees, keys on the causal edge.
    for phase in tl.static_range(0 if HAS_WINDOW else 1, 3):
        if phase == 0:
            low, beyond = first // TILE * TILE, tl.minimum(full, end)
        elif phase == 1:
            low, beyond = full, part
        else:
            low, beyond = part, end
        for start in range(low, beyond, TILE):
            tokens = start + tl.arange(0, TILE)
            is_read = (tokens >= first) & (tokens < end)
            block = blocks_of(table, start, tokens, is_read, phase != 1, BLOCK_SIZE, TILE)
            row = head * head_rows + tokens % BLOCK_SIZE * token_rows
            at = data + block * block_units * UNIT

            k_at = (at + row * K_DIM)[None, :] + of_k[:, None]
            k = tile_of(k_at, (of_k < K_DIM)[:, None], is_read[None, :], K_DIM < K_BLOCK, phase != 1)
            s = dot(queries, decoded(k, queries.dtype), tl.zeros([ROWS, TILE], tl.float32))
            if scales is not None:
                scale_at = (scales + block * block_scales + row)[None, :]
                s *= tile_of(scale_at + k_scale_base, True, is_read[None, :], False, phase != 1)
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
                weights *= tile_of(scale_at + v_scale_base, True, is_read[None, :], False, phase != 1) * V_LIFT

            v_at = (at + v_base + row * v_stride)[:, None] + of_v[None, :]
            v = tile_of(v_at, is_read[:, None], (of_v < V_DIM)[None, :], phase != 1, V_DIM < V_BLOCK)
            acc = dot(narrowed(weights, queries.dtype), decoded(v, queries.dtype), acc * shrink[:, None])

    result = acc * (v_scale / V_LIFT) / tl.where(mass == 0.0, 1.0, mass)[:, None]
    out_at = out + (token64 * (KV_HEADS * GROUP) + query_heads)[:, None] * V_DIM + of_v[None, :]
    tl.store(out_at, narrowed(result, out.dtype.element_ty), mask=is_row & (of_v < V_DIM)[None, :])


@dataclass(frozen=True, slots=True)
class Config:
    """`rows` pairs of a token and a query head per program, `tile` keys per iteration."""

    rows: int = 64
    tile: int = 32
    warps: int = 8
    stages: int = 2


DEFAULT = Config()
SPACE: dict[str, tuple[int, ...]] = {
    "rows": (16, 32, 64, 128),
    "tile": (16, 32, 64, 128),
    "warps": (4, 8),
    "stages": (1, 2, 3, 4),
}
WIDEST = 256
"""Elements of a row of K or V: wider ones are latent rows, which have a kernel of their own."""


def default_for(shape: KernelShape) -> Config:
    """A configuration chosen to spill no register: DEFAULT, but for wide rows of 8-bit elements and for products in
    float32, which use no tensor core. `benchmarks/compile_space.py --shipped` says for which shapes it holds."""
    if in_float32(shape):
        return Config(rows=16, tile=16, warps=4, stages=1)
    if max(shape.k_dim, shape.v_dim) > WIDEST // 2 and BYTES[shape.kv_dtype] == 1:
        return Config(tile=16)
    return DEFAULT


def allowed(shape: KernelShape, config: Config) -> str | None:
    """Why this configuration cannot run the shape, None if it can."""
    if shape.kv_heads < 1 or shape.query_heads < 1 or shape.query_heads % shape.kv_heads:
        return f"{shape.query_heads} query heads cannot share {shape.kv_heads} KV heads"
    if max(shape.k_dim, shape.v_dim) > WIDEST:
        return f"rows of {max(shape.k_dim, shape.v_dim)} elements are wider than {WIDEST}"
    return refused(shape, config)


def constants(shape: KernelShape, config: Config) -> dict[str, Any]:
    """What a variant is compiled for."""
    return {
        "KV_HEADS": shape.kv_heads,
        "GROUP": shape.query_heads // shape.kv_heads,
        "BLOCK_SIZE": shape.block_size,
        "K_DIM": shape.k_dim,
        "V_DIM": shape.v_dim,
        "K_BLOCK": padded(shape.k_dim),
        "V_BLOCK": padded(shape.v_dim),
        "UNIT": 16 // BYTES[shape.kv_dtype],
        "V_LIFT": lift_of(shape),
        "HAS_WINDOW": shape.has_window,
        "HAS_CAP": shape.has_cap,
        "IN_FLOAT32": in_float32(shape),
        "ROWS": config.rows,
        "TILE": config.tile,
    }


def prefill(
    q: Tensor,
    data: Tensor,
    scales: Tensor | None,
    tables: Tensor,
    lengths: Tensor,
    starts: Tensor,
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
    config: Config | None = None,
) -> None:
    """Into `out`, of any float dtype, by `default_for` unless a configuration is given. Tables `[S, width]`, lengths
    `[S]` and starts `[S + 1]` are int32; the elements of a row of q and of the table lie together, all else is
    contiguous. Ids must have been checked. `ValueError` for what `allowed` refuses."""
    offsets = Offsets(
        block_size, block_elements, v_base, v_stride, block_scales, k_scale_base, v_scale_base, head_rows, token_rows
    )
    pieces, tokens = lengths.shape[0], q.shape[0]
    is_windowed = window_of(window) < NO_WINDOW
    shape = shape_of(q, data, scales, kv_heads, k_dim, v_dim, block_size, is_windowed, cap > 0)
    config = config or default_for(shape)
    if refusal := allowed(shape, config):
        raise ValueError(refusal)
    if pieces == 0 or tokens == 0:
        return
    fixed = constants(shape, config)
    tiles = tokens * fixed["GROUP"] // config.rows + pieces
    paged_prefill[(tiles * kv_heads,)](
        q,
        data,
        scales,
        tables,
        lengths,
        starts,
        sinks,
        out,
        pieces,
        tables.stride(0),
        window_of(window),
        scale,
        cap,
        v_scale,
        q.stride(0),
        q.stride(1),
        **integers(offsets, fixed["UNIT"]),
        **fixed,
        num_warps=config.warps,
        num_stages=config.stages,
    )


def compile_spec(shape: KernelShape, config: Config) -> CompileSpec:
    """The compile that a launch on a pool of this layer alone makes."""
    stored = TRITON_NAMES[shape.kv_dtype]
    fixed = constants(shape, config)
    pointers = {
        "q": TRITON_NAMES[shape.query_dtype],
        "data": stored,
        "scales": "fp32" if shape.has_block_scales else None,
        "tables": "i32",
        "lengths": "i32",
        "starts": "i32",
        "sinks": "fp32" if shape.has_sinks else None,
        "out": TRITON_NAMES[shape.query_dtype],
    }
    numbers = {"pieces": shape.batch, "width": -(-shape.context // shape.block_size), "window": 0}
    numbers |= {"q_stride": shape.query_heads * shape.k_dim, "q_head_stride": shape.k_dim}
    numbers |= integers(block_offsets(shape), fixed["UNIT"])
    floats = ("scale", "cap", "v_scale")
    return compile_of(paged_prefill, pointers, numbers, floats, fixed, config.warps, config.stages, _VARYING)
