"""The forward pass over a paged KV store, the same for every family: what differs stands in the parts of a layer
(`engine/heads.py`, `latent.py`, `mlp.py`, `experts.py`).

The residual stream is float32 whatever the weights' dtype. K and V are written to the store first and attention
reads the stored form, so that within one KV dtype chunking and cache hits change nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from kvbench.engine.families import FAMILIES
from kvbench.engine.rope import RotaryTable

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from kvbench.engine.attention.registry import AttentionBackend
    from kvbench.engine.batch import StepBatch
    from kvbench.engine.kvstore.store import KVStore
    from kvbench.engine.norm import RmsNorm
    from kvbench.engine.weights import Weights
    from kvbench.geometry.model import ModelGeometry


@dataclass(frozen=True, slots=True)
class StepInputs:
    """A step's arrays on the device: `token_ids` and `positions` `[T]`, none of which exceeds `longest`, `slots`
    `[G, T]` and `logit_rows` `[n]`."""

    token_ids: Tensor
    positions: Tensor
    longest: int
    slots: Tensor
    logit_rows: Tensor


class Transformer:
    """Weights, rotary tables, and one step through all layers."""

    def __init__(self, geometry: ModelGeometry, weights: Weights, device: torch.device) -> None:
        self.geometry, self.weights, self.device = geometry, weights, device
        self._dtype = weights.embedding.dtype
        self._rotary = {
            is_local: RotaryTable(geometry, device, is_local=is_local)
            for is_local in {layer.attention.is_local for layer in weights.layers}
        }
        self._embedding_scale = _embedding_scale(geometry, self._dtype)
        self._last_layer = geometry.num_layers - 1

    def step(self, batch: StepBatch, store: KVStore, attention: AttentionBackend, layers: int | None = None) -> Tensor:
        """Logits `[n, vocab]` float32 of `batch.logit_rows`; the KV of every token of the batch is stored. With
        `layers` the model ends after so many."""
        attention.prepare(batch, store)
        inputs = StepInputs(
            token_ids=self._staged(batch.token_ids),
            positions=self._staged(batch.positions),
            longest=int(batch.positions.max(initial=0)),
            slots=self._staged(batch.slots),
            logit_rows=self._staged(batch.logit_rows),
        )
        return self.compute(inputs, store, attention, layers)

    def compute(
        self, inputs: StepInputs, store: KVStore, attention: AttentionBackend, layers: int | None = None
    ) -> Tensor:
        """The part of `step` that runs on the device, for a batch that the backend has been given."""
        last_layer = self._last_layer if layers is None else layers - 1
        rotations = {is_local: table.at(inputs.positions, inputs.longest) for is_local, table in self._rotary.items()}
        slots, wanted = inputs.slots, inputs.logit_rows
        hidden = self._embed(inputs.token_ids)
        for index, layer in enumerate(self.weights.layers[: last_layer + 1]):
            own = layer.attention
            q, k, v = own.project(layer.attention_norm(hidden).to(self._dtype), rotations[own.is_local])
            store.write(index, k, v, slots[store.group_of_layer[index]])
            if index == last_layer and len(wanted) == 0:
                break
            attended = attention.attend(index, q, store, own.rule)
            if index == last_layer:
                # Beyond its K and V, a token whose logits nobody wants has nothing left to give.
                attended, hidden = attended[wanted], hidden[wanted]
            hidden += _normed(layer.after_attention, own.output(attended))
            hidden += _normed(layer.after_mlp, layer.mlp(layer.mlp_norm(hidden).to(self._dtype)))
        return self._logits(hidden, len(wanted))

    def _embed(self, token_ids: Tensor) -> Tensor:
        hidden = F.embedding(token_ids, self.weights.embedding).float()
        return hidden if self._embedding_scale == 1.0 else hidden * self._embedding_scale

    def _logits(self, hidden: Tensor, count: int) -> Tensor:
        if count == 0:
            return hidden.new_empty((0, self.geometry.vocab_size))
        logits = self.weights.head(self.weights.final_norm(hidden).to(self._dtype)).float()
        cap = self.geometry.logit_cap
        return logits if cap is None else (logits / cap).tanh_().mul_(cap)

    def _staged(self, array: NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(array).to(self.device, non_blocking=True)


def _normed(norm: RmsNorm | None, added: Tensor) -> Tensor:
    """What a block adds to the residual stream, under a norm of its own where the family has one."""
    return added if norm is None else norm(added.float())


def _embedding_scale(geometry: ModelGeometry, dtype: torch.dtype) -> float:
    """√hidden as the weights' dtype rounds it: Gemma was trained with that number."""
    if not FAMILIES[geometry.family].scales_embedding:
        return 1.0
    return float(torch.tensor(math.sqrt(geometry.hidden_size)).to(dtype))
