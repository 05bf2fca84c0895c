"""Attention over a paged pool in float64 torch, one sequence at a time: what the Triton kernels are held to.

`data` is one layer's pool as a flat tensor of stored elements, `scales` the same memory as float32 or None; `offsets`
say where a token's rows lie (`offsets.py`), `dims` are (KV heads, k_dim, v_dim). Nothing outside what a sequence sees
is read: neither slots nor entries of its block table.

A latent layer is one KV head whose V is the front of its K: offsets with `v_base` 0, `v_stride` k_dim and one scale.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from kvbench_kernels.offsets import Offsets


@dataclass(frozen=True)
class Rule:
    """score = scale · q · k; with `cap` > 0 then cap · tanh(score / cap). `window`: only the last that many tokens up
    to the query's own, None for all. `sinks` float32 `[query_heads]`: a logit per head that enters the denominator of
    the softmax and nothing else. `v_scale` multiplies the result (static scale of V)."""

    scale: float
    window: int | None = None
    cap: float = 0.0
    sinks: Tensor | None = None
    v_scale: float = 1.0


def stored_kv(
    data: Tensor,
    scales: Tensor | None,
    table: Tensor,
    first: int,
    end: int,
    dims: tuple[int, int, int],
    offsets: Offsets,
) -> tuple[Tensor, Tensor]:
    """K `[kv_heads, end - first, k_dim]` and V of tokens [first, end), scales applied, float64. `table` `[width]`."""
    kv_heads, k_dim, v_dim = dims
    tokens = torch.arange(first, end)
    blocks, places = table[tokens // offsets.block_size].long(), tokens % offsets.block_size
    rows = torch.arange(kv_heads)[:, None] * offsets.head_rows + places * offsets.token_rows
    starts = blocks * offsets.block_elements
    k = data[(starts + rows * k_dim)[..., None] + torch.arange(k_dim)].double()
    v = data[(starts + offsets.v_base + rows * offsets.v_stride)[..., None] + torch.arange(v_dim)].double()
    if scales is None:
        return k, v
    words = blocks * offsets.block_scales + rows
    k_scale, v_scale = scales[words + offsets.k_scale_base], scales[words + offsets.v_scale_base]
    return k * k_scale[..., None].double(), v * v_scale[..., None].double()


def attend(q: Tensor, k: Tensor, v: Tensor, rule: Rule, first: int = 0) -> Tensor:
    """Queries of one sequence at its end, causally: q `[n, query_heads, k_dim]`; k `[kv_heads, m, k_dim]` and v of
    tokens [first, first + m), of which the last n are the queries' own → `[n, query_heads, v_dim]` float64."""
    group = q.shape[1] // k.shape[0]
    k, v = (x.repeat_interleave(group, dim=0) for x in (k, v))
    scores = rule.scale * torch.einsum("nhd,hmd->hnm", q.double(), k)
    if rule.cap > 0:
        scores = rule.cap * torch.tanh(scores / rule.cap)
    token = torch.arange(first, first + k.shape[1])
    own = token[-q.shape[0] :, None]
    is_seen = token <= own
    if rule.window is not None:
        is_seen &= token > own - rule.window
    scores = scores.masked_fill(~is_seen, -torch.inf)
    if rule.sinks is not None:
        sinks = rule.sinks.double()[:, None, None].expand(-1, q.shape[0], 1)
        weights = torch.softmax(torch.cat([scores, sinks], dim=-1), dim=-1)[..., :-1]
    else:
        weights = torch.softmax(scores, dim=-1)
    return rule.v_scale * torch.einsum("hnm,hmd->nhd", weights, v)


def prefill(
    q: Tensor,
    query_starts: Tensor,
    data: Tensor,
    scales: Tensor | None,
    tables: Tensor,
    lengths: Tensor,
    dims: tuple[int, int, int],
    offsets: Offsets,
    rule: Rule,
) -> Tensor:
    """Ragged causal attention. q `[tokens, query_heads, k_dim]`, of sequence s the rows query_starts[s] to
    query_starts[s + 1] (`[S + 1]`), the last of its `lengths[s]` tokens; all of K and V is in the pool.
    → `[tokens, query_heads, v_dim]` float64."""
    out = torch.zeros(q.shape[0], q.shape[1], dims[2], dtype=torch.float64)
    starts = query_starts.tolist()
    for s, length in enumerate(lengths.tolist()):
        begin, end = starts[s], starts[s + 1]
        if begin == end or length == 0:
            continue
        first = 0 if rule.window is None else max(0, length - (end - begin) - rule.window + 1)
        k, v = stored_kv(data, scales, tables[s], first, length, dims, offsets)
        out[begin:end] = attend(q[begin:end], k, v, rule, first)
    return out


def decode(
    q: Tensor,
    data: Tensor,
    scales: Tensor | None,
    tables: Tensor,
    lengths: Tensor,
    dims: tuple[int, int, int],
    offsets: Offsets,
    rule: Rule,
) -> Tensor:
    """One query per sequence: q `[S, query_heads, k_dim]` → `[S, query_heads, v_dim]`; length 0 gives zeros."""
    return prefill(q, torch.arange(q.shape[0] + 1), data, scales, tables, lengths, dims, offsets, rule)
