"""Weights as the forward pass wants them: Q, K and V in one matrix, gate and up in one, packed for the CPU.

Tensors come by their Hugging Face names from a source: a checkpoint, or seeded random numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from kvbench.engine.norm import RmsNorm
from kvbench.engine.rope import pair_neighbours

if TYPE_CHECKING:
    from kvbench.geometry.model import ModelGeometry

_PACKED_FOR_ROWS = 64


class TensorSource(Protocol):
    """Where weights come from."""

    def __call__(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """The tensor of that name and shape, on the wanted device, in any float dtype."""
        ...


class Linear:
    """y = x Wᵀ + b. On a CPU the matrix is kept in oneDNN's own blocked order, which makes products with few rows
    (decode) 1.4–5 times as fast as the row-major matrix; results differ from it in the last bits only."""

    __slots__ = ("_bias", "_is_packed", "_weight")

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self._bias = bias
        self._is_packed = can_pack(weight)
        self._weight = (
            torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), _PACKED_FOR_ROWS)
            if self._is_packed
            else weight.contiguous()
        )

    def __call__(self, x: Tensor) -> Tensor:
        """`[T, in]` → `[T, out]`."""
        if self._is_packed:
            packed: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, "none", [], "")
            return packed
        return F.linear(x, self._weight, self._bias)


def can_pack(weight: Tensor) -> bool:
    """Whether oneDNN takes this matrix: float32 everywhere, bfloat16 where the CPU computes it."""
    if weight.device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    if weight.dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return weight.dtype == torch.float32


@dataclass(slots=True)
class LayerWeights:
    """One decoder layer. Norm weights are float32; matrices have the model's weight dtype."""

    attention_norm: RmsNorm
    qkv: Linear
    """hidden → (query_heads + 2 · kv_heads) · head_dim, Q and K with rotary pairs as neighbours"""
    qk_norm: RmsNorm | None
    """A weight per head of Q and K, `[query_heads + kv_heads, head_dim]` (qwen3)"""
    output: Linear
    mlp_norm: RmsNorm
    gate_up: Linear
    """hidden → 2 · intermediate"""
    down: Linear


@dataclass(slots=True)
class Weights:
    """All of a model."""

    embedding: Tensor
    """`[vocab, hidden]`"""
    layers: list[LayerWeights]
    final_norm: RmsNorm
    head: Linear
    """hidden → vocab"""


def tensor_shapes(geometry: ModelGeometry) -> dict[str, tuple[int, ...]]:
    """Every tensor of the model by its Hugging Face name; a tied model has no `lm_head.weight`."""
    hidden, vocab = geometry.hidden_size, geometry.vocab_size
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocab, hidden)}
    for layer in range(geometry.num_layers):
        shapes |= {f"model.layers.{layer}.{name}": shape for name, shape in _layer_shapes(geometry).items()}
    shapes["model.norm.weight"] = (hidden,)
    if not geometry.tie_word_embeddings:
        shapes["lm_head.weight"] = (vocab, hidden)
    return shapes


def _layer_shapes(geometry: ModelGeometry) -> dict[str, tuple[int, ...]]:
    hidden, inner, d = geometry.hidden_size, geometry.intermediate_size, geometry.head_dim
    queries, keys = geometry.query_heads * d, geometry.kv_heads * d
    matrices = {
        "self_attn.q_proj": (queries, hidden),
        "self_attn.k_proj": (keys, hidden),
        "self_attn.v_proj": (keys, hidden),
        "self_attn.o_proj": (hidden, queries),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }
    shapes: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
    }
    for name, shape in matrices.items():
        shapes[f"{name}.weight"] = shape
        if _has_bias(geometry, name):
            shapes[f"{name}.bias"] = shape[:1]
    if geometry.qk_norm:
        shapes |= {"self_attn.q_norm.weight": (d,), "self_attn.k_norm.weight": (d,)}
    return shapes


def _has_bias(geometry: ModelGeometry, name: str) -> bool:
    if name.startswith("mlp."):
        return geometry.mlp_bias
    return geometry.output_bias if name.endswith("o_proj") else geometry.attention_bias


class _Assembler:
    """Asks the source for named tensors and puts them together."""

    def __init__(self, geometry: ModelGeometry, source: TensorSource, dtype: torch.dtype) -> None:
        self.geometry, self.source, self.dtype = geometry, source, dtype
        self.shapes = tensor_shapes(geometry)

    def tensor(self, name: str, dtype: torch.dtype | None = None) -> Tensor:
        return self.source(name, self.shapes[name]).to(dtype or self.dtype)

    def norm(self, name: str) -> RmsNorm:
        return RmsNorm(self.tensor(name, torch.float32), self.geometry.rms_norm_eps)

    def linear(self, *names: str) -> Linear:
        weight = torch.cat([self._rows(f"{name}.weight") for name in names])
        biases = [self._rows(f"{name}.bias") for name in names if f"{name}.bias" in self.shapes]
        return Linear(weight, torch.cat(biases) if biases else None)

    def _rows(self, name: str) -> Tensor:
        rows = self.tensor(name)
        is_rotated = ".q_proj." in name or ".k_proj." in name
        return pair_neighbours(rows, self.geometry.head_dim) if is_rotated else rows

    def qk_norm(self, attention: str) -> RmsNorm | None:
        g = self.geometry
        if not g.qk_norm:
            return None
        heads = {"q": g.query_heads, "k": g.kv_heads}
        weights = {x: self.tensor(f"{attention}.{x}_norm.weight", torch.float32) for x in heads}
        rows = [pair_neighbours(weights[x], g.head_dim).expand(count, -1) for x, count in heads.items()]
        return RmsNorm(torch.cat(rows), g.rms_norm_eps)

    def layer(self, index: int) -> LayerWeights:
        prefix = f"model.layers.{index}"
        attention, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
        return LayerWeights(
            attention_norm=self.norm(f"{prefix}.input_layernorm.weight"),
            qkv=self.linear(*(f"{attention}.{x}_proj" for x in "qkv")),
            qk_norm=self.qk_norm(attention),
            output=self.linear(f"{attention}.o_proj"),
            mlp_norm=self.norm(f"{prefix}.post_attention_layernorm.weight"),
            gate_up=self.linear(f"{mlp}.gate_proj", f"{mlp}.up_proj"),
            down=self.linear(f"{mlp}.down_proj"),
        )


@torch.inference_mode()
def assemble(geometry: ModelGeometry, source: TensorSource, dtype: torch.dtype) -> Weights:
    """Fetch every tensor once, layer by layer, so that little more than one layer exists twice."""
    parts = _Assembler(geometry, source, dtype)
    embedding = parts.tensor("model.embed_tokens.weight")
    return Weights(
        embedding=embedding,
        layers=[parts.layer(index) for index in range(geometry.num_layers)],
        final_norm=parts.norm("model.norm.weight"),
        head=Linear(embedding) if geometry.tie_word_embeddings else parts.linear("lm_head"),
    )
