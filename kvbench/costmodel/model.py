"""Seconds of a step: a model's work over a device's rates.

    linear     max(weights read, FLOPs)      2 FLOPs per active weight and token, the head's only for sampled rows;
                                             weights are read once a step, of E experts with k per token the
                                             expected share 1 − (1 − k/E)^tokens
    decode     max(KV read, FLOPs)           2 · query heads · (d_k + d_v) FLOPs per token of context and layer
    prefill    max(KV read, FLOPs)           the same per (query, key) pair
    walk       block-table entries · layers · KV heads · block_s
    write      K and V of the step's tokens
    overhead   step_s + layers · layer_s + sequences · sequence_s

The step is the sum; within a line the two roofs overlap (Williams et al. 2009). FLOPs: Kaplan et al. 2020, table 1 (2
per weight and token, attention apart). A latent layer (MLA) is priced in its absorbed form: every query head against
one shared vector, scores over d_k and sums over kv_lora_rank.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kvbench.costmodel.features import StepFeatures, decode_run_reads, step_features
from kvbench.geometry.dtypes import storage_dtype
from kvbench.geometry.memory import TOKEN_HEAD, block_bytes, layer_block_bytes
from kvbench.geometry.weights import weight_bytes_by_part, weights_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvbench.costmodel.rates import Rates
    from kvbench.geometry.model import LayerGroup, ModelGeometry


_BY_DISK = ("demote", "load")


@dataclass(frozen=True, slots=True)
class _Shape:
    """One layer group: seconds per token of context while decoding, per token and per pair in a prefill, per
    block-table entry."""

    window: int | None
    decode_token_s: float
    read_token_s: float
    pair_s: float
    entry_s: float


class CostModel:
    """What one engine's steps and transfers take. The same numbers in give the same seconds out, on every machine."""

    def __init__(
        self,
        geometry: ModelGeometry,
        rates: Rates,
        *,
        weight_dtype: str,
        kv_dtype: str,
        block_size: int,
        kv_scales: str = TOKEN_HEAD,
    ) -> None:
        self.rates = rates
        self.block_size = block_size
        self.block_bytes = block_bytes(geometry, kv_dtype, block_size, kv_scales)
        self._shapes = [_shape(geometry, group, rates, kv_dtype, block_size, kv_scales) for group in geometry.groups]
        self.windows = tuple(shape.window for shape in self._shapes)
        self._flops = _flops_rate(rates, weight_dtype)
        head = geometry.vocab_size * geometry.hidden_size
        active = sum(w.active_elements for w in weights_of(geometry) if w.is_linear or w.part in ("mlp", "attention"))
        self._token_s = 2.0 * active / self._flops
        self._sampled_s = 2.0 * head / self._flops
        self._dense_s, self._expert_s = _weight_seconds(geometry, rates, weight_dtype)
        experts = geometry.experts
        self._idle_share = 1.0 - experts.per_token / experts.routed if experts else 0.0
        stored = sum(len(g.layers) * layer_block_bytes(g, kv_dtype, block_size, kv_scales) for g in geometry.groups)
        self._write_s = stored / block_size / rates.kv_bytes
        self._overhead_s = rates.step_s + geometry.num_layers * rates.layer_s

    def features(
        self, starts: NDArray[np.integer], counts: NDArray[np.integer], num_decodes: int, sampled: int
    ) -> StepFeatures:
        """See `step_features`."""
        return step_features(starts, counts, num_decodes, sampled, self.windows, self.block_size)

    def step_s(self, step: StepFeatures) -> float:
        """Seconds of one step, its transfers apart."""
        prefill_s = 0.0
        for shape, context, pairs in zip(self._shapes, step.prefill_context, step.prefill_pairs, strict=True):
            prefill_s += max(context * shape.read_token_s, pairs * shape.pair_s)
        seconds = self._fixed_s(step.sequences, step.tokens, step.sampled) + prefill_s
        for shape, context, blocks in zip(self._shapes, step.decode_context, step.blocks, strict=True):
            seconds += context * shape.decode_token_s
            seconds += blocks * shape.entry_s
        return seconds

    def decode_run_s(self, lengths: NDArray[np.int64], steps: int) -> NDArray[np.float64]:
        """`[steps]` seconds of consecutive steps that decode sequences of these lengths (the query token included in
        the first step) and nothing else: bit for bit what `step_s` says of each of them."""
        seconds = np.full(steps, self._fixed_s(len(lengths), len(lengths), len(lengths)) + 0.0)
        for shape in self._shapes:
            context, blocks = decode_run_reads(lengths, steps, shape.window, self.block_size)
            seconds += context * shape.decode_token_s
            seconds += blocks * shape.entry_s
        return seconds

    def copies_s(self, kind: str, blocks: int) -> float:
        """Copying so many blocks in one go; `kind` is one of the cache's kinds of block copy."""
        return self.rates.transfer_s + blocks * self.block_bytes / self._link(kind) if blocks else 0.0

    def _link(self, kind: str) -> float:
        """B/s of the way that a kind of copy takes: a load from disk passes both links and is bound by the slower."""
        if kind == "copy":
            return self.rates.copy_bytes
        return min(self.rates.disk_bytes, self.rates.host_bytes) if kind in _BY_DISK else self.rates.host_bytes

    def _fixed_s(self, sequences: int, tokens: int, sampled: int) -> float:
        """All that does not depend on how long the sequences are."""
        experts_s = self._expert_s * (1.0 - self._idle_share**tokens) if self._expert_s else 0.0
        linear_s = max(self._dense_s + experts_s, tokens * self._token_s + sampled * self._sampled_s)
        return self._overhead_s + sequences * self.rates.sequence_s + linear_s + tokens * self._write_s


def decode_kernel_s(
    geometry: ModelGeometry,
    rates: Rates,
    *,
    kv_dtype: str,
    block_size: int,
    batch: int,
    context: int,
    kv_scales: str = TOKEN_HEAD,
) -> float:
    """One call of decode attention over one layer: launch, KV read or FLOPs, and the walk."""
    shape = _shape(geometry, geometry.groups[0], rates, kv_dtype, block_size, kv_scales)
    blocks = batch * -(-context // block_size)
    return rates.layer_s + batch * context * shape.decode_token_s + blocks * shape.entry_s


def _shape(g: ModelGeometry, group: LayerGroup, rates: Rates, kv_dtype: str, block_size: int, kv_scales: str) -> _Shape:
    layers = len(group.layers)
    read_s = layers * layer_block_bytes(group, kv_dtype, block_size, kv_scales) / block_size / rates.kv_bytes
    value_dim = g.latent.kv_lora_rank if group.kind == "latent" and g.latent else group.v_head_dim
    pair_s = layers * 2.0 * g.query_heads * (group.k_head_dim + value_dim) / rates.attention_flops
    return _Shape(group.window, max(read_s, pair_s), read_s, pair_s, layers * group.kv_heads * rates.block_s)


def _flops_rate(rates: Rates, weight_dtype: str) -> float:
    width = float(storage_dtype(weight_dtype).bytes_per_element)
    return rates.fp32_flops if width == 4 else rates.half_flops if width == 2 else rates.byte_flops


def _weight_seconds(g: ModelGeometry, rates: Rates, dtype: str) -> tuple[float, float]:
    """Seconds to read the weights that every step reads, and all routed experts. A tied table is read as the head, an
    untied input table is only looked up."""
    parts = weight_bytes_by_part(g, dtype)
    total = sum(parts.values()) - (0 if g.tie_word_embeddings else parts["embedding"])
    experts = 0.0
    if g.experts is not None:
        elements = sum(w.elements for w in weights_of(g))
        routed = sum(w.elements for w in weights_of(g) if w.name.startswith("experts."))
        experts = sum(parts.values()) * (routed / elements)
    return (total - experts) / rates.weight_bytes, experts / rates.weight_bytes
