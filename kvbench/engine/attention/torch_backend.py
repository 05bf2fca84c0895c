"""The readable reference: gather the blocks, then SDPA. Runs on any device."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from kvbench.engine.attention.grouped import causal_attention
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

    def prepare(self, batch: StepBatch, store: KVStore) -> None:
        self._staged = stage(batch, store)
        self._tables = torch.from_numpy(self._staged.tables).to(store.device)
        self._lengths = torch.from_numpy(self._staged.lengths).to(store.device)

    def attend(self, layer: int, q: Tensor, store: KVStore) -> Tensor:
        staged, view = self._staged, store.layers[layer]
        tables = self._tables[store.group_of_layer[layer]]
        out = torch.empty((*q.shape[:2], view.layout.v_dim), device=q.device)
        for begin, end in _decode_ranges(staged, view):
            out[begin:end] = _decode(q[begin:end], tables[begin:end], self._lengths[begin:end], view)
        for piece in staged.pieces:
            k, v = store.gather(layer, tables[piece.sequence], piece.length)
            out[piece.start : piece.end] = causal_attention(q[piece.start : piece.end], k, v)
        return out.to(q.dtype)


def _decode_ranges(staged: StagedBatch, view: LayerView) -> list[tuple[int, int]]:
    """Decode rows in ranges that gather at most `GATHER_ELEMENTS`."""
    padded = staged.tables.shape[2] * view.layout.block_size * view.layout.kv_heads * view.layout.k_dim
    step = max(1, GATHER_ELEMENTS // max(1, padded))
    count = staged.num_decodes
    return [(begin, min(begin + step, count)) for begin in range(0, count, step)]


def _decode(q: Tensor, tables: Tensor, lengths: Tensor, view: LayerView) -> Tensor:
    """q `[S, query_heads, dk]`, tables `[S, width]`, lengths `[S]` → `[S, query_heads, dv]` float32.

    Slots beyond a sequence's length may hold anything, NaN included, so they are replaced and not only masked.
    """
    size = view.layout.block_size
    width = max(1, -(-int(lengths.max()) // size))
    blocks = tables[:, :width].long()
    is_token = torch.arange(width * size, device=q.device) < lengths[:, None]
    k = _padded(view.k, view.k_scale, blocks, is_token)
    v = _padded(view.v, view.v_scale, blocks, is_token)
    grouped = q.float().unflatten(1, (view.layout.kv_heads, -1))
    attended = F.scaled_dot_product_attention(grouped, k, v, attn_mask=is_token[:, None, None, :])
    is_empty = (lengths == 0)[:, None, None, None]
    return torch.where(is_empty, 0.0, attended).flatten(1, 2)


def _padded(stored: Tensor, scales: Tensor | None, blocks: Tensor, is_token: Tensor) -> Tensor:
    """`[S, kv_heads, width · block_size, d]` float32, zero beyond each sequence's end."""
    elements = stored[blocks].transpose(1, 2).flatten(2, 3)
    scale = None if scales is None else scales[blocks].transpose(1, 2).flatten(2, 3)
    return torch.where(is_token[:, None, :, None], decode(elements, scale), 0.0)
