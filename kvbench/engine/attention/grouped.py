"""SDPA with several query heads per KV head, in float32.

Heads are grouped by a stride-0 expansion of K and V: nothing is copied, and the fused CPU kernel is kept, which
`enable_gqa` loses for bf16.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

if TYPE_CHECKING:
    from torch import Tensor

QUERY_ROWS = 256
"""Query tokens per SDPA call: keys beyond a piece's last row are never touched, and its mask stays small."""


def causal_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """q `[n, query_heads, dk]` of the last n of L tokens, k `[kv_heads, L, dk]`, v `[kv_heads, L, dv]` →
    `[n, query_heads, dv]` float32."""
    n, length = q.shape[0], k.shape[1]
    grouped = q.float().unflatten(1, (k.shape[0], -1)).permute(1, 2, 0, 3)
    pieces = []
    for start in range(0, n, QUERY_ROWS):
        end = min(start + QUERY_ROWS, n)
        seen = length - n + end
        pieces.append(_attend(grouped[:, :, start:end], k[:, :seen], v[:, :seen]))
    return torch.cat(pieces, dim=2).permute(2, 0, 1, 3).flatten(1, 2)


def _attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """q `[kv_heads, group, n, dk]`, the last n rows of k's tokens → `[kv_heads, group, n, dv]`."""
    group, rows, tokens = q.shape[1], q.shape[2], k.shape[1]
    k = k.unsqueeze(1).expand(-1, group, -1, -1)
    v = v.unsqueeze(1).expand(-1, group, -1, -1)
    if rows == tokens:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=_mask(rows, tokens, q.device))


def _mask(rows: int, tokens: int, device: torch.device) -> Tensor | None:
    """0 where row i of the last `rows` tokens may look, −inf beyond; None when there is nothing to hide."""
    if rows == 1:
        return None
    width = max(1024, 1 << (tokens - 1).bit_length())
    wide = _wide_mask(QUERY_ROWS, width, device)
    before = tokens - rows
    return wide[:rows, width - before : width - before + tokens]


@lru_cache(maxsize=8)
def _wide_mask(rows: int, width: int, device: torch.device) -> Tensor:
    """Row i sees columns up to `width + i`: a window of it, shifted, is the mask of any shorter context."""
    hidden = torch.ones((rows, width + rows), dtype=torch.bool, device=device).triu(diagonal=width + 1)
    return torch.zeros(hidden.shape, device=device).masked_fill_(hidden, float("-inf"))
