"""Decode on a GPU: one query token per sequence against its paged context, cut into splits (flash-decoding).

    out[s, g] = Σ_t softmax_t(scale · q[s, g] · k_t) v_t      over the tokens t of sequence s, KV head g // group

q `[S, query_heads, k_dim]` fp16, bf16 or fp32, its last dimension contiguous; out `[S or more, query_heads, v_dim]` of
any of these, contiguous; tables int32 `[S, width]` physical blocks; lengths int32 `[S]`, 0 gives zeros; `data` the
layer's pool as a flat tensor of stored elements, `scales` the same memory as float32 (None without scales in the
blocks); offsets as in `decode_numba.py` and `offsets.py`, and so are `window`, `sinks` (None for none), `cap`, and a
latent layer. A static scale of K belongs into `scale`; that of V is `v_scale`, which multiplies the result.

One program computes one sequence, KV head and split: the query heads of a KV head are rows of one tile of `head_rows`,
and it walks over its part of the context in tiles of `tile` tokens. The tile has nothing to do with the block: each
token's block is looked up in the table, once per tile where a tile lies within a block. Head sizes that are no power of
two are padded, with masks on every load and store. Splits are whole tiles, counted from the tile of the first token
that is seen; a second kernel merges them, and with one split the first writes the result itself. Table entries, K, V
and scales beyond the length or before the window are never loaded: NaN there cannot get in (0 · NaN is NaN).

Arithmetic: products in the queries' dtype, in float32 where the stored form has more precision or range, in fp16 for
bf16 queries over int8 and fp8: fp16 holds all their numbers, the weights keep three bits more, and fp8 becomes fp16 in
one instruction. Sums, softmax and merging are float32, exponentials of base 2. Scales stay out of the inner products:
the K scale multiplies the score, the V scale the weight. What would leave fp16's range is moved by powers of two: bf16
queries by their row's largest, a weight times the V scale by about a quarter of the form's largest number (the scale of
an e5m2 row is its largest element over 57,344), so that rows of V may reach from 0.001 to 200,000.
A block's offset is 64 bits wide from the moment the block is known.

The bits of a result depend on the number of splits and the tile, which are the caller's: not on the rest of the batch.

Versions tried: there was no GPU to time them on. Registers a thread, instructions of the whole kernel and shared memory
as compiled offline for sm_90 by Triton 3.9, no spills (bf16 queries, 32 / 8 heads × 128, tile 64, 4 warps, 3 stages):

                            registers   instructions   shared
    bf16, block 16                105         1,397    39,424
    bf16, block 64                 79         1,182    38,916   a tile lies within a block: one look-up, rows in a row
    bf16, tile 128                130         1,467    74,240
    bf16, 8 warps                  86           936    39,424
    bf16, 4 stages                105         1,397    39,424   the same code: K waits for the table, a stage each
    bf16, 5 stages                126         1,769    72,704
    fp8 e4m3, block 16            204         1,879    23,808   products in fp16; block 64: 143 registers
      products in bf16            198         2,003    23,808   each element by way of fp16 and float32
    fp8 e5m2, block 16            204         1,879    23,808   products in bf16: 195 and 2,084
    int8, block 16                198         2,062    23,808   block 64: 143 registers
      products in bf16            241         2,021    23,808
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from kvbench_kernels.offsets import block_offsets
from kvbench_kernels.triton_launches import padded, refused
from kvbench_kernels.triton_runtime import TRITON_NAMES, compile_of, decoded, dot, narrowed, scores_base2, window_of

if TYPE_CHECKING:
    from torch import Tensor

    from kvbench_kernels.specs import CompileSpec, KernelShape

V_UNITS = {torch.int8: 32.0, torch.float8_e4m3fn: 128.0, torch.float8_e5m2: 16384.0}
"""What scales of V are multiplied by, and the result divided."""
_LEAST_TOKENS = 128
_NARROW_ROW = 128
_PROGRAMS_PER_PROCESSOR = 2
_MOST_WAVES, _GOOD_ENOUGH = 8, 0.85
_MERGED_AT_ONCE, _MERGE_WARPS = 16, 4
_NEG_INF, _LOG2E = tl.constexpr(float("-inf")), tl.constexpr(1.4426950408889634)


@dataclass(frozen=True)
class Config:
    """`tile` tokens a step, `head_rows` query heads of one KV head a program (both powers of two, 16 or more), warps
    of a program, and stages of its software pipeline."""

    tile: int = 64
    warps: int = 4
    stages: int = 3
    head_rows: int = 16


DEFAULT = Config()
SPACE: dict[str, tuple[int, ...]] = {
    "tile": (16, 32, 64, 128),
    "warps": (1, 2, 4, 8),
    "stages": (1, 2, 3, 5),
    "head_rows": (16, 32, 64, 128),
}
DTYPES = {
    "fp32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "fp8_e4m3": torch.float8_e4m3fn,
    "fp8_e5m2": torch.float8_e5m2,
    "int8": torch.int8,
}


@triton.jit(do_not_specialize=["splits", "window", "table_width"])
def _decode(
    q,
    data,
    scales,
    tables,
    lengths,
    sinks,
    out,
    partial,
    partial_lse,
    window,
    scale,
    cap,
    v_scale,
    splits,
    table_width,
    q_stride,
    q_head_stride,
    kv_heads,
    block_elements,
    v_base,
    v_stride,
    block_scales,
    k_scale_base,
    v_scale_base,
    head_rows,
    token_rows,
    GROUP: tl.constexpr,
    K_DIM: tl.constexpr,
    V_DIM: tl.constexpr,
    BLOCK: tl.constexpr,
    TILE: tl.constexpr,
    ROWS: tl.constexpr,
    K_PADDED: tl.constexpr,
    V_PADDED: tl.constexpr,
    V_UNIT: tl.constexpr,
    HAS_CAP: tl.constexpr,
    WIDE: tl.constexpr,
    HALF: tl.constexpr,
):
    """Grid (S, kv_heads · head blocks, splits). `partial` float32 `[S, query_heads, splits, V_DIM]`, `partial_lse`
    `[S, query_heads, splits]`: normalised results and base-2 logarithms of the masses, untouched with one split."""
    s = tl.program_id(0).to(tl.int64)
    head_blocks: tl.constexpr = (GROUP + ROWS - 1) // ROWS
    h = tl.program_id(1) // head_blocks
    split = tl.program_id(2)

    # what this split sees: whole tiles of [first, length)
    length = tl.load(lengths + s)
    first = tl.maximum(length - window, 0)
    begin = first // TILE * TILE
    share = tl.cdiv(tl.cdiv(length - begin, TILE), splits) * TILE
    begin += split * share
    end = tl.minimum(begin + share, length)

    # the queries of this KV head
    in_group = tl.program_id(1) % head_blocks * ROWS + tl.arange(0, ROWS)
    rows = h * GROUP + in_group
    is_row = in_group < GROUP
    k_column, v_column = tl.arange(0, K_PADDED), tl.arange(0, V_PADDED)
    is_k, is_v = k_column < K_DIM, v_column < V_DIM
    q_places = s * q_stride + rows[:, None] * q_head_stride + k_column[None, :]
    queries = tl.load(q + q_places, mask=is_row[:, None] & is_k[None, :], other=0.0)
    q_unit = tl.full((ROWS,), 1.0, tl.float32)
    if WIDE:
        queries = queries.to(tl.float32)
    if HALF:  # a power of two per row brings the queries into fp16's range
        numbers = queries.to(tl.float32)
        largest = tl.max(tl.abs(numbers), 1).to(tl.int32, bitcast=True) & 0x7F800000
        q_unit = tl.where(largest == 0, 1.0, largest.to(tl.float32, bitcast=True))
        queries = (numbers / q_unit[:, None]).to(tl.float16)
    score_scale = scale * q_unit[:, None]

    table = tables + s * table_width
    high = tl.full((ROWS,), _NEG_INF, tl.float32)
    mass = tl.zeros((ROWS,), tl.float32)
    acc = tl.zeros((ROWS, V_PADDED), tl.float32)
    for tile in range(begin, end, TILE):
        # where the tile's rows are
        token = tile + tl.arange(0, TILE)
        is_seen = (token >= first) & (token < end)
        if BLOCK % TILE == 0:
            block = tl.load(table + tile // BLOCK).to(tl.int64)
        else:
            block = tl.load(table + token // BLOCK, mask=is_seen, other=0).to(tl.int64)
        row = h * head_rows + token % BLOCK * token_rows

        k_places = block * block_elements + row * K_DIM
        k = tl.load(data + k_places[None, :] + k_column[:, None], mask=is_seen[None, :] & is_k[:, None], other=0.0)
        k = decoded(k, queries.dtype)
        raw = dot(queries, k, tl.zeros((ROWS, TILE), tl.float32))
        if scales is not None:
            words = scales + block * block_scales + row
            raw *= tl.load(words + k_scale_base, mask=is_seen, other=0.0)[None, :]
        score = tl.where(is_seen[None, :], scores_base2(raw, score_scale, cap, HAS_CAP), _NEG_INF)

        higher = tl.maximum(high, tl.max(score, 1))
        weight = tl.exp2(score - higher[:, None])
        shrink = tl.exp2(high - higher)
        mass = mass * shrink + tl.sum(weight, 1)
        high = higher
        if scales is not None:
            weight *= V_UNIT * tl.load(words + v_scale_base, mask=is_seen, other=0.0)[None, :]

        v_places = block * block_elements + v_base + row * v_stride
        v = tl.load(data + v_places[:, None] + v_column[None, :], mask=is_seen[:, None] & is_v[None, :], other=0.0)
        acc = dot(narrowed(weight, queries.dtype), decoded(v, queries.dtype), acc * shrink[:, None])

    is_result = is_row[:, None] & is_v[None, :]
    row64 = s * (kv_heads * GROUP) + rows
    if splits == 1:
        if sinks is not None:
            sink = tl.load(sinks + rows, mask=is_row, other=0.0) * _LOG2E
            mass += tl.exp2(sink - high)
        result = acc * (v_scale / V_UNIT) / tl.where(length > 0, mass, 1.0)[:, None]
        tl.store(
            out + row64[:, None] * V_DIM + v_column[None, :], narrowed(result, out.dtype.element_ty), mask=is_result
        )
    elif begin < end:
        place = row64 * splits + split
        tl.store(partial + place[:, None] * V_DIM + v_column[None, :], acc / mass[:, None], mask=is_result)
        tl.store(partial_lse + place, high + tl.log2(mass), mask=is_row)


@triton.jit(do_not_specialize=["splits", "window"])
def _merge(
    partial,
    partial_lse,
    lengths,
    sinks,
    out,
    window,
    v_scale,
    splits,
    query_heads,
    V_DIM: tl.constexpr,
    V_PADDED: tl.constexpr,
    V_UNIT: tl.constexpr,
    TILE: tl.constexpr,
    AT_ONCE: tl.constexpr,
):
    """Grid (S, query_heads): one head's splits into its result. Splits without tokens were never written."""
    s = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    row = s * query_heads + head
    length = tl.load(lengths + s)
    begin = tl.maximum(length - window, 0) // TILE * TILE
    share = tl.cdiv(tl.cdiv(length - begin, TILE), splits) * TILE
    column = tl.arange(0, V_PADDED)
    is_v = column < V_DIM

    high = tl.full((1,), _NEG_INF, tl.float32)
    mass = tl.zeros((1,), tl.float32)
    if sinks is not None:
        high = tl.zeros((1,), tl.float32) + tl.load(sinks + head) * _LOG2E
        mass += 1.0
    acc = tl.zeros((V_PADDED,), tl.float32)
    for start in range(0, splits, AT_ONCE):
        split = start + tl.arange(0, AT_ONCE)
        is_written = (split < splits) & (begin + split * share < length)
        lse = tl.load(partial_lse + row * splits + split, mask=is_written, other=_NEG_INF)
        higher = tl.maximum(high, tl.max(lse, 0))
        weight = tl.where(is_written, tl.exp2(lse - higher), 0.0)
        shrink = tl.where(high == higher, 1.0, tl.exp2(high - higher))
        places = (row * splits + split)[:, None] * V_DIM + column[None, :]
        parts = tl.load(partial + places, mask=is_written[:, None] & is_v[None, :], other=0.0)
        acc = acc * shrink + tl.sum(parts * weight[:, None], 0)
        mass = mass * shrink + tl.sum(weight, 0)
        high = higher
    result = acc * (v_scale / V_UNIT) / tl.where(mass > 0.0, mass, 1.0)
    tl.store(out + row * V_DIM + column, narrowed(result, out.dtype.element_ty), mask=is_v)


def decode(
    q: Tensor,
    data: Tensor,
    scales: Tensor | None,
    tables: Tensor,
    lengths: Tensor,
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
    """Into `out`, by `default_for` unless a configuration is given. `scratch` is what `scratch_for` gives, the
    caller's where launches must not allocate."""
    batch, query_heads = q.shape[:2]
    if batch == 0:
        return
    config = config or _default(_in_float32(q.dtype, data.dtype), max(k_dim, v_dim))
    if scratch is None:
        scratch = scratch_for(batch, query_heads, v_dim, splits, q.device)
    partial, partial_lse = scratch, scratch[batch * query_heads * splits * v_dim :]
    window = window_of(window)
    group = query_heads // kv_heads
    v_unit = 1.0 if scales is None else V_UNITS.get(data.dtype, 1.0)
    _decode[(batch, kv_heads * -(-group // config.head_rows), splits)](
        q,
        data,
        scales,
        tables,
        lengths,
        sinks,
        out,
        partial,
        partial_lse,
        window,
        scale,
        cap,
        v_scale,
        splits,
        tables.stride(0),
        q.stride(0),
        q.stride(1),
        kv_heads,
        block_elements,
        v_base,
        v_stride,
        block_scales,
        k_scale_base,
        v_scale_base,
        head_rows,
        token_rows,
        **_constants(group, k_dim, v_dim, block_size, config, v_unit),
        HAS_CAP=cap > 0,
        **_arithmetic(q.dtype, data.dtype),
        num_warps=config.warps,
        num_stages=config.stages,
    )
    if splits > 1:
        merge(scratch, lengths, sinks, out[:batch], window, v_scale, v_unit, splits, config.tile)


def merge(
    scratch: Tensor,
    lengths: Tensor,
    sinks: Tensor | None,
    out: Tensor,
    window: int,
    v_scale: float,
    v_unit: float,
    splits: int,
    tile: int,
) -> None:
    """The splits of a decode, of this page or that of latent rows, into `out` `[S, query_heads, v_dim]`; `v_unit` is
    what weights were multiplied by, and splits are `splits` runs of whole tiles."""
    batch, query_heads, v_dim = out.shape
    _merge[(batch, query_heads)](
        scratch,
        scratch[out.numel() * splits :],
        lengths,
        sinks,
        out,
        window_of(window),
        v_scale,
        splits,
        query_heads,
        **_merge_constants(v_dim, tile, v_unit),
        num_warps=_MERGE_WARPS,
    )


def scratch_for(batch: int, query_heads: int, v_dim: int, splits: int, device: torch.device) -> Tensor:
    """float32 room for the splits' results; its contents do not matter."""
    elements = batch * query_heads * splits * (v_dim + 1) if splits > 1 else 0
    return torch.empty(elements, dtype=torch.float32, device=device)


@lru_cache(maxsize=1024)
def splits_for(
    batch: int, query_heads: int, kv_heads: int, context: int, processors: int, config: Config = DEFAULT
) -> int:
    """How many splits a launch is cut into on a device with so many multiprocessors; `context` is the longest that is
    seen, a window at most.

    Programs come in waves of two per multiprocessor. The least number of splits is taken whose waves are 85 % as full
    as those of the best, among numbers that leave a split 128 tokens and make no more than eight waves: one sequence of
    32k tokens fills the device, 256 tokens are never cut into more than two. (By waves, as in
    FlashAttention's `num_splits_heuristic`.)
    """
    programs = batch * kv_heads * -(-(query_heads // kv_heads) // config.head_rows)
    slots = _PROGRAMS_PER_PROCESSOR * processors
    most = max(1, min(-(-context // _LEAST_TOKENS), _MOST_WAVES * slots // max(1, programs)))
    waves = [programs * splits / slots for splits in range(1, most + 1)]
    fullness = [wave / -(-wave // 1) if wave else 1.0 for wave in waves]
    enough = _GOOD_ENOUGH * max(fullness)
    return 1 + next(i for i, full in enumerate(fullness) if full >= enough)


def default_for(shape: KernelShape) -> Config:
    """A configuration chosen to spill no register: DEFAULT, but for wide rows and for products in float32, which use
    no tensor core. (Products of mixed dtypes in float32 spill at 256 elements in all of them.)
    `benchmarks/compile_space.py --shipped` says for which shapes it holds."""
    query, stored = DTYPES[shape.query_dtype], DTYPES[shape.kv_dtype]
    return _default(_in_float32(query, stored), max(shape.k_dim, shape.v_dim))


def _in_float32(query: torch.dtype, stored: torch.dtype) -> bool:
    return torch.float32 in (query, stored) or (query == torch.float16 and stored == torch.bfloat16)


def _default(in_float32: bool, widest: int) -> Config:
    if in_float32:
        return Config(tile=32, warps=8)
    return Config(tile=32) if widest > _NARROW_ROW else DEFAULT


def allowed(shape: KernelShape, config: Config) -> str | None:
    """Why the kernel cannot run this shape so; None when it can."""
    group = shape.query_heads // max(1, shape.kv_heads)
    if shape.query_tokens != 1:
        return f"decode has one query a sequence, not {shape.query_tokens}"
    if shape.kv_heads < 1 or group * shape.kv_heads != shape.query_heads or group < 1:
        return f"{shape.query_heads} query heads cannot share {shape.kv_heads} KV heads"
    if reason := refused(shape, config, ("tile", "head_rows")):
        return reason
    if config.head_rows > padded(group):
        return f"{config.head_rows} rows of heads for {group} query heads per KV head"
    return None


def compile_spec(shape: KernelShape, config: Config) -> CompileSpec:
    """The attention kernel's compile for a pool of this layer alone."""
    kv, query = TRITON_NAMES[shape.kv_dtype], TRITON_NAMES[shape.query_dtype]
    offsets = block_offsets(shape, is_latent=is_latent(shape))
    v_unit = V_UNITS.get(DTYPES[shape.kv_dtype], 1.0) if shape.has_block_scales else 1.0
    group = shape.query_heads // shape.kv_heads
    pointers = {"q": query, "data": kv, "scales": "fp32" if shape.has_block_scales else None}
    pointers |= {"tables": "i32", "lengths": "i32", "sinks": "fp32" if shape.has_sinks else None}
    pointers |= {"out": query, "partial": "fp32", "partial_lse": "fp32"}
    integers = {"window": 0, "splits": 0, "table_width": 0, "kv_heads": shape.kv_heads}
    integers |= {"q_stride": shape.query_heads * shape.k_dim, "q_head_stride": shape.k_dim}
    integers |= {name: value for name, value in offsets._asdict().items() if name != "block_size"}
    constants = _constants(group, shape.k_dim, shape.v_dim, shape.block_size, config, v_unit)
    constants["HAS_CAP"] = shape.has_cap
    constants |= _arithmetic(DTYPES[shape.query_dtype], DTYPES[shape.kv_dtype])
    floats = ("scale", "cap", "v_scale")
    varying = ("window", "splits", "table_width")
    return compile_of(_decode, pointers, integers, floats, constants, config.warps, config.stages, varying)


def merge_spec(shape: KernelShape, config: Config) -> CompileSpec:
    """The compile of the kernel that merges splits."""
    v_unit = V_UNITS.get(DTYPES[shape.kv_dtype], 1.0) if shape.has_block_scales else 1.0
    pointers = {"partial": "fp32", "partial_lse": "fp32", "lengths": "i32", "out": TRITON_NAMES[shape.query_dtype]}
    pointers["sinks"] = "fp32" if shape.has_sinks else None
    integers = {"window": 0, "splits": 0, "query_heads": shape.query_heads}
    constants = _merge_constants(shape.v_dim, config.tile, v_unit)
    return compile_of(
        _merge, pointers, integers, ("v_scale",), constants, _MERGE_WARPS, DEFAULT.stages, ("window", "splits")
    )


def is_latent(shape: KernelShape) -> bool:
    """Whether V is the front of K."""
    return shape.kv_heads == 1 and shape.v_dim < shape.k_dim


def _constants(
    group: int, k_dim: int, v_dim: int, block_size: int, config: Config, v_unit: float
) -> dict[str, int | float | bool]:
    return {
        "GROUP": group,
        "K_DIM": k_dim,
        "V_DIM": v_dim,
        "BLOCK": block_size,
        "TILE": config.tile,
        "ROWS": config.head_rows,
        "K_PADDED": padded(k_dim),
        "V_PADDED": padded(v_dim),
        "V_UNIT": v_unit,
    }


def _arithmetic(query: torch.dtype, stored: torch.dtype) -> dict[str, bool]:
    """Whether the products are taken in float32, or in fp16 though the queries are bf16."""
    is_wide = stored == torch.float32 or (query == torch.float16 and stored == torch.bfloat16)
    return {"WIDE": is_wide, "HALF": query == torch.bfloat16 and stored.itemsize == 1}


def _merge_constants(v_dim: int, tile: int, v_unit: float) -> dict[str, int | float]:
    sizes = {"V_DIM": v_dim, "V_PADDED": padded(v_dim), "TILE": tile, "AT_ONCE": _MERGED_AT_ONCE}
    return {**sizes, "V_UNIT": v_unit}
