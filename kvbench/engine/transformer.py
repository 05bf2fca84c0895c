"""The forward pass of the llama, qwen2 and qwen3 families over a paged KV store.

The residual stream is float32 whatever the weights' dtype. K and V are written to the store first and attention
reads the stored form (DESIGN §9.11), so that within one KV dtype chunking and cache hits change nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from kvbench.engine.rope import RotaryTable, rotate_

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from kvbench.engine.attention.registry import AttentionBackend
    from kvbench.engine.batch import StepBatch
    from kvbench.engine.kvstore.store import KVStore
    from kvbench.engine.weights import LayerWeights, Weights
    from kvbench.geometry.model import ModelGeometry


class Transformer:
    """Weights, a rotary table, and one step through all layers."""

    def __init__(self, geometry: ModelGeometry, weights: Weights, device: torch.device) -> None:
        self.geometry, self.weights, self.device = geometry, weights, device
        self._dtype = weights.embedding.dtype
        self._rotary = RotaryTable(geometry, device)
        self._last_layer = geometry.num_layers - 1

    def step(self, batch: StepBatch, store: KVStore, attention: AttentionBackend) -> Tensor:
        """Logits `[n, vocab]` float32 of `batch.logit_rows`; the KV of every token of the batch is stored."""
        attention.prepare(batch, store)
        rotations = self._rotary.at(self._staged(batch.positions), int(batch.positions.max(initial=0)))
        slots = self._staged(batch.slots)
        wanted = self._staged(batch.logit_rows)
        hidden = F.embedding(self._staged(batch.token_ids), self.weights.embedding).float()
        for index, layer in enumerate(self.weights.layers):
            q, k, v = self._project(layer, hidden, rotations)
            store.write(index, k, v, slots[store.group_of_layer[index]])
            if index == self._last_layer and len(wanted) == 0:
                break
            attended = attention.attend(index, q, store).flatten(1).to(q.dtype)
            if index == self._last_layer:
                # Beyond its K and V, a token whose logits nobody wants has nothing left to give.
                attended, hidden = attended[wanted], hidden[wanted]
            hidden += layer.output(attended)
            hidden += self._mlp(layer, hidden)
        return self._logits(hidden, len(wanted))

    def _project(self, layer: LayerWeights, hidden: Tensor, rotations: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Q `[T, query_heads, d]`, K and V `[T, kv_heads, d]`, rotated."""
        g = self.geometry
        qkv = layer.qkv(layer.attention_norm(hidden).to(self._dtype)).unflatten(-1, (-1, g.head_dim))
        qk, v = qkv[:, : -g.kv_heads], qkv[:, -g.kv_heads :]
        wide = qk.float()
        if layer.qk_norm is not None:
            wide = layer.qk_norm(wide)
        rotate_(wide, rotations)
        qk = wide.to(qkv.dtype)
        return qk[:, : g.query_heads], qk[:, g.query_heads :], v

    def _mlp(self, layer: LayerWeights, hidden: Tensor) -> Tensor:
        gate, up = layer.gate_up(layer.mlp_norm(hidden).to(self._dtype)).chunk(2, dim=-1)
        return layer.down(F.silu(gate).mul_(up))

    def _logits(self, hidden: Tensor, count: int) -> Tensor:
        if count == 0:
            return hidden.new_empty((0, self.geometry.vocab_size))
        return self.weights.head(self.weights.final_norm(hidden).to(self._dtype)).float()

    def _staged(self, array: NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(array).to(self.device, non_blocking=True)
