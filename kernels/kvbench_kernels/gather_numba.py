"""Gather: one sequence's K and V, decoded to float32, head by head: the input of prefill attention.

    k_out[h, t, :] = decode(block(t)[h, place(t), :]) [· scale]

table int32 `[n]` physical blocks; k_out `[kv_heads, L, k_dim]`, v_out `[kv_heads, L, v_dim]` float32 contiguous;
the rest as in `write_numba`. Tokens from L on are not read.
"""

from __future__ import annotations

from kvbench_kernels.elements import fetch
from kvbench_kernels.runtime import helper, kernel

# isort: split
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
    k_out,
    v_out,
    block_size,
    block_elements,
    v_base,
    block_scales,
    k_scale_base,
    v_scale_base,
):
    k_dim, v_dim = k_out.shape[2], v_out.shape[2]
    for t in range(begin, end):
        b = t // block_size
        block = int(table[b])
        first = block * block_elements
        for h in range(k_out.shape[0]):
            place = h * block_size + t - b * block_size
            if scales is None:
                _copy_row(data, first + place * k_dim, k_out[h, t])
                _copy_row(data, first + v_base + place * v_dim, v_out[h, t])
            else:
                scale = block * block_scales + place
                _read_row(data, first + place * k_dim, scales[k_scale_base + scale], k_out[h, t])
                _read_row(data, first + v_base + place * v_dim, scales[v_scale_base + scale], v_out[h, t])


@kernel(parallel=True)
def gather(
    data,
    scales,
    table,
    k_out,
    v_out,
    block_size,
    block_elements,
    v_base,
    block_scales,
    k_scale_base,
    v_scale_base,
    parts,
):
    layout = (block_size, block_elements, v_base, block_scales, k_scale_base, v_scale_base)
    length = k_out.shape[1]
    if parts == 1:
        _gather_tokens(0, length, data, scales, table, k_out, v_out, *layout)
    else:
        for part in prange(parts):
            _gather_tokens(
                length * part // parts, length * (part + 1) // parts, data, scales, table, k_out, v_out, *layout
            )
