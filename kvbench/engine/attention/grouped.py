"""Attention in float32 with several query heads per KV head, over gathered K and V.

Heads are grouped by a stride-0 expansion of K and V: nothing is copied, and the fused CPU kernel is kept, which
`enable_gqa` loses for bf16. Scores with a soft cap or a sink are computed in the open, which no fused kernel does.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from kvbench.engine.attention.rule import PLAIN, ScoreRule

if TYPE_CHECKING:
    from torch import Tensor

QUERY_ROWS = 256
"""Query tokens per SDPA call: keys beyond a piece's last row are never touched, and its mask stays small."""
SCORES = 1 << 24
"""Most scores that are computed in the open at once."""


def causal_attention(
    q: Tensor, k: Tensor, v: Tensor, rule: ScoreRule = PLAIN, window: int | None = None, *, is_latent: bool = False
) -> Tensor:
    """q `[n, query_heads, dk]` of the last n tokens, k `[kv_heads, L, dk]`, v `[kv_heads, L, dv]` of the last L, which
    are all that the queries see → `[n, query_heads, dv]` float32. `window`: what a query sees, itself included.
    `is_latent`: v is the front of k. The fused kernel wants equal widths, so it weighs whole rows, and what is not V is
    cut off (1.2–2 times as fast as without it)."""
    n, length, width = q.shape[0], k.shape[1], v.shape[-1]
    v = k if is_latent else v
    grouped = q.float().unflatten(1, (k.shape[0], -1)).permute(1, 2, 0, 3)
    step = QUERY_ROWS if rule.is_plain else min(QUERY_ROWS, max(1, SCORES // (q.shape[1] * max(1, length))))
    pieces = []
    for start in range(0, n, step):
        end = min(start + step, n)
        seen = length - n + end
        first = 0 if window is None else max(0, length - n + start - window + 1)
        pieces.append(_attend(grouped[:, :, start:end], k[:, first:seen], v[:, first:seen], rule, window))
    return torch.cat(pieces, dim=2)[..., :width].permute(2, 0, 1, 3).flatten(1, 2)


def _attend(q: Tensor, k: Tensor, v: Tensor, rule: ScoreRule, window: int | None) -> Tensor:
    """q `[kv_heads, group, n, dk]`, the last n rows of k's tokens → `[kv_heads, group, n, dv]`."""
    group, rows, tokens = q.shape[1], q.shape[2], k.shape[1]
    k = k.unsqueeze(1).expand(-1, group, -1, -1)
    v = v.unsqueeze(1).expand(-1, group, -1, -1)
    scale = rule.scale_for(q.shape[-1])
    if rule.is_plain and rows == tokens and (window is None or window >= tokens):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale)
    mask = _mask(rows, tokens, window, q.device)
    if rule.is_plain:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)
    sinks = None if rule.sinks is None else rule.sinks.view(-1, group, 1, 1)
    return weigh(q, k, v, mask, rule, sinks)


def weigh(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, rule: ScoreRule, sinks: Tensor | None) -> Tensor:
    """Attention in the open: q `[…, n, dk]`, k `[…, L, dk]`, v `[…, L, dv]`, `mask` added to the scores, `sinks` of a
    shape that broadcasts to `[…, n, 1]`."""
    scores = (q @ k.transpose(-1, -2)).mul_(rule.scale_for(q.shape[-1]))
    if rule.soft_cap:
        scores = scores.div_(rule.soft_cap).tanh_().mul_(rule.soft_cap)
    if mask is not None:
        scores += mask
    if sinks is not None:
        scores = torch.cat([scores, sinks.expand(*scores.shape[:-1], 1)], dim=-1)
    return scores.softmax(-1)[..., : k.shape[-2]] @ v


def _mask(rows: int, tokens: int, window: int | None, device: torch.device) -> Tensor | None:
    """0 where row i of the last `rows` tokens may look, −inf elsewhere; None when there is nothing to hide."""
    if rows == 1:
        return None
    width = max(1024, 1 << (tokens - 1).bit_length())
    wide = _wide_mask(QUERY_ROWS, width, window, device)
    before = tokens - rows
    return wide[:rows, width - before : width - before + tokens]


@lru_cache(maxsize=16)
def _wide_mask(rows: int, width: int, window: int | None, device: torch.device) -> Tensor:
    """Row i sees columns up to `width + i`, `window` of them: a part of it, shifted, is the mask of any shorter
    context."""
    hidden = torch.ones((rows, width + rows), dtype=torch.bool, device=device).triu(diagonal=width + 1)
    if window is not None:
        hidden |= torch.ones_like(hidden).tril(diagonal=width - window)
    return torch.zeros(hidden.shape, device=device).masked_fill_(hidden, float("-inf"))
