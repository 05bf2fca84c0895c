"""Decode: one query token per sequence against its paged context.

    out[s, g] = Σ_t softmax_t(q[s, g] · k_t / √k_dim) v_t        over the tokens t of sequence s, KV head g // group

q `[S, query_heads, k_dim]`, out `[S, query_heads, v_dim]` float32 contiguous; table int32 `[S, width]` physical blocks;
lengths int32 `[S]`, 0 gives zeros; `data` the layer's pool as a flat array of stored elements, `scales` the same memory
as float32 (None for float forms); offsets as in the store's block layout.
"""

from __future__ import annotations

from kvbench_kernels.elements import exp2, fetch
from kvbench_kernels.runtime import helper, kernel

# isort: split
import numpy as np
from numba import float32, prange

TILE = 64
SPLIT = 256
FAST = {"reassoc", "contract", "nsz"}
LOG2E = 1.4426950408889634


@helper(fastmath=FAST)
def _dot1(q, q0, data, row, size):
    s = float32(0.0)
    for d in range(size):
        s += fetch(q, q0 + d) * fetch(data, row + d)
    return s


@helper(fastmath=FAST)
def _dot4(q, q0, data, row, size):
    s0 = float32(0.0)
    s1 = float32(0.0)
    s2 = float32(0.0)
    s3 = float32(0.0)
    q1 = q0 + size
    q2 = q1 + size
    q3 = q2 + size
    for d in range(size):
        k = fetch(data, row + d)
        s0 += fetch(q, q0 + d) * k
        s1 += fetch(q, q1 + d) * k
        s2 += fetch(q, q2 + d) * k
        s3 += fetch(q, q3 + d) * k
    return s0, s1, s2, s3


@helper(fastmath=FAST)
def _axpy4(acc, data, r0, r1, r2, r3, p0, p1, p2, p3):
    for d in range(acc.size):
        acc[d] += (
            p0 * fetch(data, r0 + d) + p1 * fetch(data, r1 + d) + p2 * fetch(data, r2 + d) + p3 * fetch(data, r3 + d)
        )


@helper(fastmath=FAST)
def _axpy1(acc, data, r0, p0):
    for d in range(acc.size):
        acc[d] += p0 * fetch(data, r0 + d)


@helper()
def _first_items(lengths, kv_heads):
    """Where each sequence's work items start: one per split of its context and KV head."""
    starts = np.empty(lengths.size + 1, np.int64)
    starts[0] = 0
    for s in range(lengths.size):
        starts[s + 1] = starts[s] + (np.int64(lengths[s]) + SPLIT - 1) // SPLIT * kv_heads
    return starts


@helper()
def _places(tile, n, table_row, h, krow, vrow, srow, k_dim, v_dim, block_size, block_elements, v_base, block_scales):
    b = tile // block_size
    o = tile - b * block_size
    block = np.int64(table_row[b])
    for t in range(n):
        place = h * block_size + o
        krow[t] = block * block_elements + place * k_dim
        vrow[t] = block * block_elements + v_base + place * v_dim
        srow[t] = block * block_scales + place
        o += 1
        if o == block_size and t + 1 < n:
            o = 0
            b += 1
            block = np.int64(table_row[b])


@helper(fastmath=FAST)
def _scores(qs, data, krow, n, k_dim, p):
    group = p.shape[0]
    g = 0
    while g + 4 <= group:
        for t in range(n):
            p[g, t], p[g + 1, t], p[g + 2, t], p[g + 3, t] = _dot4(qs, g * k_dim, data, krow[t], k_dim)
        g += 4
    while g < group:
        for t in range(n):
            p[g, t] = _dot1(qs, g * k_dim, data, krow[t], k_dim)
        g += 1


@helper(fastmath=FAST)
def _softmax(p, n, scales, srow, k_scale_base, v_scale_base, high, mass, acc):
    for g in range(p.shape[0]):
        if scales is not None:
            for t in range(n):
                p[g, t] *= scales[k_scale_base + srow[t]]
        m = high[g]
        for t in range(n):
            m = max(m, p[g, t])
        shrink = exp2(high[g] - m)
        total = float32(0.0)
        for t in range(n):
            e = exp2(p[g, t] - m)
            p[g, t] = e
            total += e
        if scales is not None:
            for t in range(n):
                p[g, t] *= scales[v_scale_base + srow[t]]
        high[g] = m
        mass[g] = mass[g] * shrink + total
        for d in range(acc.shape[1]):
            acc[g, d] *= shrink


@helper(fastmath=FAST)
def _accumulate(p, n, data, vrow, acc):
    for g in range(p.shape[0]):
        t = 0
        while t + 4 <= n:
            _axpy4(
                acc[g],
                data,
                vrow[t],
                vrow[t + 1],
                vrow[t + 2],
                vrow[t + 3],
                p[g, t],
                p[g, t + 1],
                p[g, t + 2],
                p[g, t + 3],
            )
            t += 4
        while t < n:
            _axpy1(acc[g], data, vrow[t], p[g, t])
            t += 1


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
    kv_heads,
    k_dim,
    v_dim,
    block_size,
    block_elements,
    v_base,
    block_scales,
    k_scale_base,
    v_scale_base,
):
    group = q.shape[1] // kv_heads
    scale = float32(LOG2E / np.sqrt(k_dim))
    qs = np.empty(group * k_dim, np.float32)
    krow = np.empty(TILE, np.int64)
    vrow = np.empty(TILE, np.int64)
    srow = np.empty(TILE, np.int64)
    p = np.empty((group, TILE), np.float32)
    s = 0
    for item in range(first, last):
        while starts[s + 1] <= item:
            s += 1
        split = (item - starts[s]) // kv_heads
        h = item - starts[s] - split * kv_heads
        begin = split * SPLIT
        end = min(begin + SPLIT, np.int64(lengths[s]))
        acc = partial[item, :, :v_dim]
        high = partial[item, :, v_dim]
        mass = partial[item, :, v_dim + 1]
        for g in range(group):
            high[g] = -np.inf
            mass[g] = 0.0
            for d in range(v_dim):
                acc[g, d] = 0.0
            for d in range(k_dim):
                qs[g * k_dim + d] = q[s, h * group + g, d] * scale
        for tile in range(begin, end, TILE):
            n = min(TILE, end - tile)
            _places(
                tile, n, table[s], h, krow, vrow, srow, k_dim, v_dim, block_size, block_elements, v_base, block_scales
            )
            _scores(qs, data, krow, n, k_dim, p)
            _softmax(p, n, scales, srow, k_scale_base, v_scale_base, high, mass, acc)
            _accumulate(p, n, data, vrow, acc)


@helper(fastmath=FAST)
def _merge(starts, partial, out, kv_heads, v_dim):
    group = out.shape[1] // kv_heads
    for s in range(starts.size - 1):
        for row in range(out.shape[1]):
            h = row // group
            g = row - h * group
            m = float32(-np.inf)
            for item in range(starts[s] + h, starts[s + 1], kv_heads):
                m = max(m, partial[item, g, v_dim])
            mass = float32(0.0)
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


@kernel(parallel=True, fastmath=FAST)
def decode(
    q,
    data,
    scales,
    table,
    lengths,
    out,
    kv_heads,
    k_dim,
    v_dim,
    block_size,
    block_elements,
    v_base,
    block_scales,
    k_scale_base,
    v_scale_base,
    parts,
):
    layout = (kv_heads, k_dim, v_dim, block_size, block_elements, v_base, block_scales, k_scale_base, v_scale_base)
    starts = _first_items(lengths, kv_heads)
    items = starts[lengths.size]
    partial = np.empty((items, q.shape[1] // kv_heads, v_dim + 2), np.float32)
    if parts == 1:
        _work(0, items, starts, partial, q, data, scales, table, lengths, *layout)
    else:
        for part in prange(parts):
            first, last = items * part // parts, items * (part + 1) // parts
            _work(first, last, starts, partial, q, data, scales, table, lengths, *layout)
    _merge(starts, partial, out, kv_heads, v_dim)
