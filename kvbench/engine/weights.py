"""Weights as the forward pass wants them: Q, K and V in one matrix, gate and up in one, packed for the CPU.

Tensors come by their Hugging Face names from a source: a checkpoint, or seeded random numbers. How the tensors of one
kind of attention or MLP are put together stands with that kind.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch

from kvbench.engine.experts import assemble_experts
from kvbench.engine.heads import assemble_heads
from kvbench.engine.latent import assemble_latent
from kvbench.engine.linear import Linear
from kvbench.engine.mlp import assemble_gated
from kvbench.engine.parts import Parts, TensorSource
from kvbench.engine.tensor_shapes import has_experts, norm_names

if TYPE_CHECKING:
    from torch import Tensor

    from kvbench.engine.attention.rule import ScoreRule
    from kvbench.engine.norm import RmsNorm
    from kvbench.geometry.model import ModelGeometry


class Attention(Protocol):
    """One layer's projections: `engine/heads.py`, `engine/latent.py`. `is_local`: rotated by the angles of window
    layers."""

    rule: ScoreRule
    is_local: bool

    def project(self, x: Tensor, rotations: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x `[T, hidden]` → Q, K, V `[T, heads, d]` as they are attended over and stored."""
        ...

    def output(self, attended: Tensor) -> Tensor:
        """`[T, query_heads, d]` → `[T, hidden]`."""
        ...


@dataclass(slots=True)
class LayerWeights:
    """One decoder layer. Norm weights are float32; matrices have the model's weight dtype."""

    attention_norm: RmsNorm
    attention: Attention
    after_attention: RmsNorm | None
    """Over what attention adds to the residual stream (Gemma)"""
    mlp_norm: RmsNorm
    mlp: Callable[[Tensor], Tensor]
    """`[T, hidden]` → `[T, hidden]`"""
    after_mlp: RmsNorm | None


@dataclass(slots=True)
class Weights:
    """All of a model."""

    embedding: Tensor
    """`[vocab, hidden]`"""
    layers: list[LayerWeights]
    final_norm: RmsNorm
    head: Linear
    """hidden → vocab"""


@torch.inference_mode()
def assemble(geometry: ModelGeometry, source: TensorSource, dtype: torch.dtype) -> Weights:
    """Fetch every tensor once, layer by layer, so that little more than one layer exists twice."""
    parts = Parts(geometry, source, dtype)
    embedding = parts.tensor("model.embed_tokens.weight")
    return Weights(
        embedding=embedding,
        layers=[_layer(parts, index) for index in range(geometry.num_layers)],
        final_norm=parts.norm("model.norm"),
        head=Linear(embedding) if geometry.tie_word_embeddings else parts.linear("lm_head"),
    )


def _layer(parts: Parts, index: int) -> LayerWeights:
    g, prefix = parts.geometry, f"model.layers.{index}"
    before, after, before_mlp, after_mlp = norm_names(g)
    attention: Attention
    if g.latent is None:
        attention = assemble_heads(parts, f"{prefix}.self_attn", index)
    else:
        attention = assemble_latent(parts, g.latent, f"{prefix}.self_attn")
    mlp = assemble_experts if has_experts(g, index) else assemble_gated
    return LayerWeights(
        attention_norm=parts.norm(f"{prefix}.{before}"),
        attention=attention,
        after_attention=parts.norm(f"{prefix}.{after}") if after else None,
        mlp_norm=parts.norm(f"{prefix}.{before_mlp}"),
        mlp=mlp(parts, f"{prefix}.mlp"),
        after_mlp=parts.norm(f"{prefix}.{after_mlp}") if after_mlp else None,
    )
