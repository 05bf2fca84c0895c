"""Decode: one query token per sequence against its paged context.

    out[s, g] = Σ_t softmax_t(scale · q[s, g] · k_t) v_t      over the tokens t of sequence s, KV head g // group

q `[S, query_heads, k_dim]`, out `[S or more, query_heads, v_dim]` float32 contiguous; table int32 `[S, width]`
physical blocks; lengths int32 `[S]`, 0 gives zeros; `data` the layer's pool as a flat array of stored elements,
`scales` the same memory as float32 (None for float forms); offsets as in the store's block layout, where the row of
head h at place p is number h · head_rows + p · token_rows; `parts` the threads to use, 1 for no parallel region;
`split` and `tile` a configuration, as `arguments` makes them.
Launch `decode` itself; it trusts the ids, so they must have been checked.

`window`: only the last that many tokens count, NO_WINDOW for all; nothing before them is read, not even the table's
entries, so a decode costs O(window). `sinks` float32 `[query_heads]`, or `[0]` for none: a logit per head that enters
the denominator of the softmax and nothing else. `cap` > 0: scores become cap · tanh(score / cap).
A latent layer is one KV head whose V is the front of its K: `v_base` 0, `v_stride` k_dim, the scale shared.

The work is cut into items of one sequence, one KV head and `split` tokens (256 by default), counted from the first that
is seen, dealt to threads in equal numbers; partial sums are merged at the end. The size of an item is fixed, so with
one configuration a sequence's result has the same bits in any batch and with any number of threads. Within an item
softmax runs over tiles of 64 tokens (by default) whatever the block size, query heads of a KV head together. Tokens
beyond the length are never loaded, so NaN in unwritten slots cannot get in (0 · NaN is NaN). Narrow forms: the K scale
multiplies the score and the V scale the weight, not each element.

Fast math is `reassoc, contract, nsz`: sums may be taken in any order; NaN and infinity keep their meaning.

Versions tried, time over that of contiguous SDPA of the same dtype (32 sequences × 1,024 tokens, shuffled blocks, AMD
Zen 4, one thread's CPU time, medians; 32 query / 8 KV heads × 64 unless it says MHA, which is 8 / 8 × 64):

    fp32, block size                          4     16    64
    plain loops, LLVM's vectoriser            1.40  1.44  0.91   (two threads, wall)
    register tiles of vectors (tiles.py)      0.88  0.77  0.71
    + next tile prefetched to level 1         0.81  0.75  0.72   rows a power of two apart evict each other
    + to level 2 instead                      0.56  0.50  0.45
    + next item's first tile as well          0.53  0.47  0.40   MHA 0.92 0.97 0.97; before any prefetch 1.3 1.5 1.5
    non-temporal prefetch (failed)            0.77  0.72  0.69

    LLVM's vectoriser keeps four heads of one token in registers: 16 lanes are summed for every dot product, and the
    accumulators are loaded and stored for every fourth token.
    int8 over our fp32, 8 query heads per KV head × 128, block 16: 0.94 when each head fetched the scales, 0.95 with
    tiles of eight heads, 0.83 with the scales of an item fetched once.
    fp8 over our fp32, block 16, one thread: e5m2 as the upper half of a half 0.76 (MHA 0.59); e4m3 through a half 1.00
    (0.69), through float32 with a sign-extending shift 0.93 (0.62).
    exp2 by adding 1.5 · 2^23 (failed): `reassoc` removes the addition, 40 % error.
    numba's `get_num_threads` inside the kernel (failed): its address makes the kernel uncacheable.
    the tile's size as a tuple argument's length (failed): numba's parallel regions take no tuples; as an array's number
    of dimensions: fp32 1.02 ± 0.04, int8 1.02 ± 0.04, bf16 1.01 ± 0.09 of the time with a constant (eight pairs of
    processes on a busy machine, 32 / 8 heads × 64).
    Huge pages for the pool (the store asks for them): MHA fp32 from 17.2 to 14.9 ms before any prefetch.
"""

from __future__ import annotations

from kvbench_kernels.decode_config import DEFAULT, TILES, Config
from kvbench_kernels.elements import exp2
from kvbench_kernels.gather_numba import reference as gathered
from kvbench_kernels.runtime import helper, kernel
from kvbench_kernels.tiles import LANES, accumulate_of, highest, scores_of, tile_like, tokens_of

# isort: split
from math import tanh

import numpy as np
from numba import float32, prange

NO_WINDOW = 1 << 62
_TILES = {tokens: tile_like(tokens) for tokens in TILES}
FAST = {"reassoc", "contract", "nsz"}
LOG2E = 1.4426950408889634
_scores1, _scores2, _scores4, _scores8 = scores_of(1), scores_of(2), scores_of(4), scores_of(8)
_accumulate1, _accumulate2, _accumulate4, _accumulate8 = (accumulate_of(heads) for heads in (1, 2, 4, 8))


@helper()
def _first_items(lengths, window, kv_heads, split):
    """Where each sequence's work items start: one per split of what it sees of its context and KV head."""
    starts = np.empty(lengths.size + 1, np.int64)
    starts[0] = 0
    for s in range(lengths.size):
        starts[s + 1] = starts[s] + (min(np.int64(lengths[s]), window) + split - 1) // split * kv_heads
    return starts


@helper()
def _locate(item, s, starts, lengths, window, kv_heads, split):
    """Sequence (searched from s on), tokens [begin, end) and KV head of a work item."""
    while starts[s + 1] <= item:
        s += 1
    number = (item - starts[s]) // kv_heads
    h = item - starts[s] - number * kv_heads
    length = np.int64(lengths[s])
    begin = max(0, length - window) + number * split
    return s, begin, min(begin + split, length), h


@helper()
def _places(begin, count, blocks, h, rows, size, base, block_size, block_elements, head_rows, token_rows):
    """Offsets of `count` tokens' rows of `size` elements, from token `begin` on, for one KV head."""
    b = begin // block_size
    o = begin - b * block_size
    start = np.int64(blocks[b]) * block_elements + base + h * head_rows * size
    for t in range(count):
        if o == block_size:
            o = 0
            b += 1
            start = np.int64(blocks[b]) * block_elements + base + h * head_rows * size
        rows[t] = start + o * token_rows * size
        o += 1


@helper()
def _repeat_last(rows, count, size):
    """Fill up to whole tiles, so that tiles may read rows beyond the end without leaving the sequence."""
    for t in range(count, (count + size - 1) // size * size):
        rows[t] = rows[count - 1]


@helper(fastmath=FAST)
def _scores(q, q_stride, data, rows, n, k_dim, p, ahead, tile):
    """Raw scores of a tile's n tokens for all heads of the group; −inf from n on."""
    size = tokens_of(tile)
    group = p.size // size
    g = 0
    while g + 8 <= group:
        for t in range(0, n, LANES // 8):
            _scores8(q, g * q_stride, q_stride, data, rows, t, k_dim, p, g * size, ahead, tile)
        g += 8
    if g + 4 <= group:
        for t in range(0, n, LANES // 4):
            _scores4(q, g * q_stride, q_stride, data, rows, t, k_dim, p, g * size, ahead, tile)
        g += 4
    if g + 2 <= group:
        for t in range(0, n, LANES // 2):
            _scores2(q, g * q_stride, q_stride, data, rows, t, k_dim, p, g * size, ahead, tile)
        g += 2
    if g < group:
        for t in range(0, n, LANES):
            _scores1(q, g * q_stride, q_stride, data, rows, t, k_dim, p, g * size, ahead, tile)
    for g in range(group):
        for t in range(n, size):
            p[g * size + t] = -np.inf


@helper(fastmath=FAST)
def _softmax(p, n, k_scales, v_scales, cap, high, mass, shrink, tile):
    """Scores → weights under the running maximum; `shrink` is what earlier tiles lose by its rise."""
    size = tokens_of(tile)
    for g in range(high.size):
        row = p[g * size : (g + 1) * size]
        if k_scales is not None:
            for t in range(n):
                row[t] *= k_scales[t]
        if cap > 0.0:
            for t in range(n):
                row[t] = cap * tanh(row[t] / cap)
        m = max(high[g], highest(p, g * size, tile))
        total = float32(0.0)
        for t in range(size):
            weight = exp2(row[t] - m)
            row[t] = weight
            total += weight
        if v_scales is not None:
            for t in range(n):
                row[t] *= v_scales[t]
        shrink[g] = exp2(high[g] - m)
        high[g] = m
        mass[g] = mass[g] * shrink[g] + total


@helper(fastmath=FAST)
def _accumulate(acc, acc_stride, shrink, data, rows, n, v_dim, p, ahead, tile):
    group = shrink.size
    g = 0
    while g + 8 <= group:
        _accumulate8(acc, acc_stride, shrink, g, data, rows, n, v_dim, p, ahead, tile)
        g += 8
    if g + 4 <= group:
        _accumulate4(acc, acc_stride, shrink, g, data, rows, n, v_dim, p, ahead, tile)
        g += 4
    if g + 2 <= group:
        _accumulate2(acc, acc_stride, shrink, g, data, rows, n, v_dim, p, ahead, tile)
        g += 2
    if g < group:
        _accumulate1(acc, acc_stride, shrink, g, data, rows, n, v_dim, p, ahead, tile)


@helper(fastmath=FAST)
def _work(
    first,
    last,
    starts,
    partial,
    q,
    data,
    scales,
    table,
    lengths,
    window,
    scale,
    cap,
    kv_heads,
    k_dim,
    v_dim,
    block_size,
    block_elements,
    v_base,
    v_stride,
    block_scales,
    k_scale_base,
    v_scale_base,
    head_rows,
    token_rows,
    split,
    tile,
):
    """Items [first, last): one sequence's split for one KV head each, left in `partial` with its maximum and mass."""
    size = tokens_of(tile)
    group = q.shape[1] // kv_heads
    rows_of = (head_rows, token_rows)
    scale = float32(LOG2E * scale)
    cap = float32(LOG2E * cap)
    q_stride = (k_dim + LANES - 1) // LANES * LANES
    acc_stride = (v_dim + LANES - 1) // LANES * LANES
    queries = np.zeros(group * q_stride, np.float32)
    acc = np.empty(group * acc_stride, np.float32)
    k_rows = np.empty(split, np.int64)
    v_rows = np.empty(split, np.int64)
    next_rows = np.zeros(size, np.int64)
    s_rows = np.empty(split, np.int64)
    k_scales = np.empty(split, np.float32)
    v_scales = np.empty(split, np.float32)
    p = np.empty(group * size, np.float32)
    high = np.empty(group, np.float32)
    mass = np.empty(group, np.float32)
    shrink = np.empty(group, np.float32)
    s = 0
    for item in range(first, last):
        s, begin, end, h = _locate(item, s, starts, lengths, window, kv_heads, split)
        count = end - begin
        for g in range(group):
            high[g] = -np.inf
            mass[g] = 0.0
            for d in range(k_dim):
                queries[g * q_stride + d] = q[s, h * group + g, d] * scale
        acc[:] = 0.0
        _places(begin, count, table[s], h, k_rows, k_dim, 0, block_size, block_elements, *rows_of)
        _places(begin, count, table[s], h, v_rows, v_stride, v_base, block_size, block_elements, *rows_of)
        if scales is not None:
            _places(begin, count, table[s], h, s_rows, 1, 0, block_size, block_scales, *rows_of)
            for t in range(count):
                k_scales[t] = scales[k_scale_base + s_rows[t]]
                v_scales[t] = scales[v_scale_base + s_rows[t]]
        _repeat_last(k_rows, count, size)
        _repeat_last(v_rows, count, size)
        if item + 1 < last:
            s1, begin1, end1, h1 = _locate(item + 1, s, starts, lengths, window, kv_heads, split)
            coming = min(size, end1 - begin1)
            _places(begin1, coming, table[s1], h1, next_rows, k_dim, 0, block_size, block_elements, *rows_of)
            _repeat_last(next_rows, coming, size)
        for at in range(0, count, size):
            n = min(size, count - at)
            k_tile, v_tile = k_rows[at : at + size], v_rows[at : at + size]
            ahead = k_rows[at + size : at + 2 * size] if at + size < count else next_rows
            _scores(queries, q_stride, data, k_tile, n, k_dim, p, v_tile, tile)
            if scales is None:
                _softmax(p, n, None, None, cap, high, mass, shrink, tile)
            else:
                _softmax(p, n, k_scales[at : at + size], v_scales[at : at + size], cap, high, mass, shrink, tile)
            _accumulate(acc, acc_stride, shrink, data, v_tile, n, v_dim, p, ahead, tile)
        for g in range(group):
            partial[item, g, v_dim] = high[g]
            partial[item, g, v_dim + 1] = mass[g]
            for d in range(v_dim):
                partial[item, g, d] = acc[g * acc_stride + d]


@helper(fastmath=FAST)
def _merge(starts, partial, sinks, out, kv_heads, v_dim):
    group = out.shape[1] // kv_heads
    for s in range(starts.size - 1):
        for row in range(out.shape[1]):
            h = row // group
            g = row - h * group
            sink = float32(LOG2E) * sinks[row] if sinks.size > 0 else float32(-np.inf)
            m = sink
            for item in range(starts[s] + h, starts[s + 1], kv_heads):
                m = max(m, partial[item, g, v_dim])
            mass = exp2(sink - m)
            for d in range(v_dim):
                out[s, row, d] = 0.0
            for item in range(starts[s] + h, starts[s + 1], kv_heads):
                weight = exp2(partial[item, g, v_dim] - m)
                mass += weight * partial[item, g, v_dim + 1]
                for d in range(v_dim):
                    out[s, row, d] += weight * partial[item, g, d]
            if starts[s + 1] > starts[s]:
                for d in range(v_dim):
                    out[s, row, d] /= mass


def arguments(config: Config = DEFAULT, most: int = 1) -> tuple[int, int, np.ndarray]:
    """The last three arguments of `decode`, for a call that is worth `most` threads."""
    return config.parts(most), config.split, _TILES[config.tile]


@kernel(parallel=True, fastmath=FAST)
def decode(
    q,
    data,
    scales,
    table,
    lengths,
    sinks,
    out,
    window,
    scale,
    cap,
    kv_heads,
    k_dim,
    v_dim,
    block_size,
    block_elements,
    v_base,
    v_stride,
    block_scales,
    k_scale_base,
    v_scale_base,
    head_rows,
    token_rows,
    parts,
    split,
    tile,
):
    rule = (window, scale, cap)
    dims = (kv_heads, k_dim, v_dim)
    bases = (block_size, block_elements, v_base, v_stride, block_scales, k_scale_base, v_scale_base)
    layout = (*bases, head_rows, token_rows, split, tile)
    starts = _first_items(lengths, window, kv_heads, split)
    items = starts[lengths.size]
    partial = np.empty((items, q.shape[1] // kv_heads, v_dim + 2), np.float32)
    if parts == 1:
        _work(0, items, starts, partial, q, data, scales, table, lengths, *rule, *dims, *layout)
    else:
        for part in prange(parts):
            first, last = items * part // parts, items * (part + 1) // parts
            _work(first, last, starts, partial, q, data, scales, table, lengths, *rule, *dims, *layout)
    _merge(starts, partial, sinks, out, kv_heads, v_dim)


def reference(
    q,
    data,
    scales,
    table,
    lengths,
    sinks,
    window,
    scale,
    cap,
    kv_heads,
    k_dim,
    v_dim,
    block_size,
    block_elements,
    v_base,
    v_stride,
    block_scales,
    k_scale_base,
    v_scale_base,
    head_rows,
    token_rows,
):
    """The same in float64 numpy, one head and sequence at a time; returns `[S, query_heads, v_dim]`."""
    out = np.zeros((lengths.size, q.shape[1], v_dim))
    layout = (block_size, block_elements, v_base, block_scales, k_scale_base, v_scale_base, head_rows, token_rows)
    for s in range(lengths.size):
        first = max(0, int(lengths[s]) - window)
        own_v = 0 if v_base == 0 else v_dim
        k, v = gathered(data, scales, table[s], first, int(lengths[s]), kv_heads, k_dim, own_v, *layout)
        v = k[..., :v_dim] if v_base == 0 else v
        for row in range(q.shape[1] if lengths[s] else 0):
            h = row * kv_heads // q.shape[1]
            scores = scale * (k[h] @ q[s, row].astype(np.float64))
            scores = cap * np.tanh(scores / cap) if cap > 0 else scores
            high = max([scores.max(), *sinks[row : row + 1]])
            weights = np.exp(scores - high)
            out[s, row] = weights @ v[h] / (weights.sum() + np.exp(sinks[row : row + 1] - high).sum())
    return out
