"""The readable reference: gather the blocks, then SDPA. Runs on any device."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from kvbench.engine.attention.grouped import causal_attention, weigh
from kvbench.engine.attention.rule import PLAIN, ScoreRule
from kvbench.engine.attention.staging import StagedBatch, stage
from kvbench.engine.kvstore.codec import decode

if TYPE_CHECKING:
    from torch import Tensor

    from kvbench.engine.batch import StepBatch
    from kvbench.engine.kvstore.pool import LayerView
    from kvbench.engine.kvstore.store import KVStore

GATHER_ELEMENTS = 1 << 26
"""Most elements of K gathered at once for a decode, padding included."""


class TorchAttention:
    """Decode: one padded gather and one masked SDPA. Prefill: one gather and one causal SDPA per sequence."""

    name = "torch"
    stores_by_triton = False

    def prepare(self, batch: StepBatch, store: KVStore) -> None:
        self._staged = stage(batch, store)
        self._tables = torch.from_numpy(self._staged.tables).to(store.device)
        self._lengths = torch.from_numpy(self._staged.lengths).to(store.device)

    def attend(self, layer: int, q: Tensor, store: KVStore, rule: ScoreRule = PLAIN) -> Tensor:
        staged, view, group = self._staged, store.layers[layer], store.group_of_layer[layer]
        tables, window = self._tables[group], staged.windows[group]
        out = torch.empty((*q.shape[:2], view.layout.v_dim), device=q.device)
        for begin, end in _decode_ranges(staged, view, window):
            rows = slice(begin, end)
            out[rows] = _decode(q[rows], tables[rows], self._lengths[rows], view, rule, window)
        for piece in staged.pieces:
            rows = slice(piece.start, piece.end)
            k, v = store.gather(layer, tables[piece.sequence], piece.length, piece.first_seen(window))
            out[rows] = causal_attention(q[rows], k, v, rule, window, is_latent=view.layout.is_latent)
        return out.to(q.dtype)


def _decode_ranges(staged: StagedBatch, view: LayerView, window: int | None) -> list[tuple[int, int]]:
    """Decode rows in ranges that gather at most `GATHER_ELEMENTS`."""
    tokens = staged.tables.shape[2] * view.layout.block_size
    if window is not None:
        tokens = min(tokens, window + 2 * view.layout.block_size)
    step = max(1, GATHER_ELEMENTS // max(1, tokens * view.layout.kv_heads * view.layout.k_dim))
    count = staged.num_decodes
    return [(begin, min(begin + step, count)) for begin in range(0, count, step)]


def _decode(q: Tensor, tables: Tensor, lengths: Tensor, view: LayerView, rule: ScoreRule, window: int | None) -> Tensor:
    """q `[S, query_heads, dk]`, tables `[S, width]`, lengths `[S]` → `[S, query_heads, dv]` float32.

    Slots that a sequence does not see may hold anything, NaN included, so they are replaced and not only masked.
    """
    size = view.layout.block_size
    first = torch.zeros_like(lengths) if window is None else (lengths - window).clamp_(min=0)
    first_block = torch.div(first, size, rounding_mode="floor")
    width = max(1, int((-torch.div(-lengths, size, rounding_mode="floor") - first_block).max()))
    places = (first_block[:, None] + torch.arange(width, device=q.device)).clamp_(max=tables.shape[1] - 1)
    blocks = tables.gather(1, places.long()).long()
    position = first_block[:, None] * size + torch.arange(width * size, device=q.device)
    is_seen = (position >= first[:, None]) & (position < lengths[:, None])
    k = _padded(view.k, view.k_scale, view.k_tensor_scale, blocks, is_seen)
    v = _padded(view.v, view.v_scale, view.v_tensor_scale, blocks, is_seen)
    grouped = q.float().unflatten(1, (view.layout.kv_heads, -1))
    attended = _attend(grouped, k, v, is_seen[:, None, None, :], rule)
    is_empty = (lengths == 0)[:, None, None, None]
    return torch.where(is_empty, 0.0, attended).flatten(1, 2)


def _attend(q: Tensor, k: Tensor, v: Tensor, is_seen: Tensor, rule: ScoreRule) -> Tensor:
    """q `[S, kv_heads, group, dk]`: the heads of a group stand where SDPA expects query tokens."""
    if rule.is_plain:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=is_seen, scale=rule.scale_for(q.shape[-1]))
    mask = torch.zeros(is_seen.shape, device=q.device).masked_fill_(~is_seen, float("-inf"))
    sinks = None if rule.sinks is None else rule.sinks.view(*q.shape[1:3], 1)
    return weigh(q, k, v, mask, rule, sinks)


def _padded(
    stored: Tensor, scales: Tensor | None, tensor_scale: float | None, blocks: Tensor, is_seen: Tensor
) -> Tensor:
    """`[S, kv_heads, width · block_size, d]` float32, zero where nothing is seen."""
    elements = stored[blocks].contiguous().transpose(1, 2).flatten(2, 3)
    scale = None if scales is None else scales[blocks].transpose(1, 2).flatten(2, 3)
    return torch.where(is_seen[:, None, :, None], decode(elements, scale, tensor_scale), 0.0)
