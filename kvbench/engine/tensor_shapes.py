"""Every tensor of a checkpoint by its Hugging Face name."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvbench.geometry.model import Experts, LatentShape, ModelGeometry

Shapes = dict[str, tuple[int, ...]]


def tensor_shapes(geometry: ModelGeometry) -> Shapes:
    """All names and shapes; a tied model has no `lm_head.weight`."""
    hidden, vocab = geometry.hidden_size, geometry.vocab_size
    shapes: Shapes = {"model.embed_tokens.weight": (vocab, hidden)}
    for layer in range(geometry.num_layers):
        shapes |= {f"model.layers.{layer}.{name}": shape for name, shape in _layer(geometry, layer).items()}
    shapes["model.norm.weight"] = (hidden,)
    if not geometry.tie_word_embeddings:
        shapes["lm_head.weight"] = (vocab, hidden)
    return shapes


def norm_names(geometry: ModelGeometry) -> tuple[str, str | None, str, str | None]:
    """A layer's norms: before attention, after it (Gemma), before the MLP, after it (Gemma)."""
    if geometry.norms_per_layer == 2:
        return "input_layernorm", None, "post_attention_layernorm", None
    return "input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"


def has_experts(geometry: ModelGeometry, layer: int) -> bool:
    """Whether the MLP of this layer (from 0) is one of experts."""
    return geometry.experts is not None and layer >= geometry.experts.first_layer


def _layer(g: ModelGeometry, layer: int) -> Shapes:
    shapes: Shapes = {f"{name}.weight": (g.hidden_size,) for name in norm_names(g) if name}
    shapes |= _heads(g) if g.latent is None else _latent(g, g.latent)
    if g.experts is None or not has_experts(g, layer):
        return shapes | gated(g, "mlp", g.intermediate_size)
    return shapes | (_fused_experts(g, g.experts) if g.experts.biased else _listed_experts(g, g.experts))


def _heads(g: ModelGeometry) -> Shapes:
    queries, keys, hidden = g.query_heads * g.head_dim, g.kv_heads * g.head_dim, g.hidden_size
    shapes: Shapes = {}
    for name, rows in (("q_proj", queries), ("k_proj", keys), ("v_proj", keys)):
        shapes |= _matrix(f"self_attn.{name}", rows, hidden, g.attention_bias)
    shapes |= _matrix("self_attn.o_proj", hidden, queries, g.output_bias)
    if g.qk_norm:
        shapes |= {f"self_attn.{x}_norm.weight": (g.head_dim,) for x in "qk"}
    if g.attention_sinks:
        shapes["self_attn.sinks"] = (g.query_heads,)
    return shapes


def _latent(g: ModelGeometry, latent: LatentShape) -> Shapes:
    rank, hidden = latent.kv_lora_rank, g.hidden_size
    queries = g.query_heads * (latent.qk_nope_head_dim + latent.qk_rope_head_dim)
    if latent.q_lora_rank is None:
        shapes = _matrix("self_attn.q_proj", queries, hidden)
    else:
        shapes = _matrix("self_attn.q_a_proj", latent.q_lora_rank, hidden, g.attention_bias)
        shapes["self_attn.q_a_layernorm.weight"] = (latent.q_lora_rank,)
        shapes |= _matrix("self_attn.q_b_proj", queries, latent.q_lora_rank)
    shapes |= _matrix("self_attn.kv_a_proj_with_mqa", rank + latent.qk_rope_head_dim, hidden, g.attention_bias)
    shapes["self_attn.kv_a_layernorm.weight"] = (rank,)
    up = g.query_heads * (latent.qk_nope_head_dim + latent.v_head_dim)
    shapes |= _matrix("self_attn.kv_b_proj", up, rank)
    return shapes | _matrix("self_attn.o_proj", hidden, g.query_heads * latent.v_head_dim, g.output_bias)


def gated(g: ModelGeometry, name: str, inner: int) -> Shapes:
    """A gated MLP's three matrices under a name."""
    shapes = _matrix(f"{name}.gate_proj", inner, g.hidden_size, g.mlp_bias)
    shapes |= _matrix(f"{name}.up_proj", inner, g.hidden_size, g.mlp_bias)
    return shapes | _matrix(f"{name}.down_proj", g.hidden_size, inner, g.mlp_bias)


def _fused_experts(g: ModelGeometry, experts: Experts) -> Shapes:
    """gpt-oss: one tensor for all experts, inputs before outputs, gate and up in turns."""
    count, inner, hidden = experts.routed, experts.intermediate_size, g.hidden_size
    return {
        **_matrix("mlp.router", count, hidden, experts.router_bias),
        "mlp.experts.gate_up_proj": (count, hidden, 2 * inner),
        "mlp.experts.gate_up_proj_bias": (count, 2 * inner),
        "mlp.experts.down_proj": (count, inner, hidden),
        "mlp.experts.down_proj_bias": (count, hidden),
    }


def _listed_experts(g: ModelGeometry, experts: Experts) -> Shapes:
    """DeepSeek: an MLP per expert, and one for all shared experts together."""
    shapes = _matrix("mlp.gate", experts.routed, g.hidden_size)
    if experts.router_bias:
        shapes["mlp.gate.e_score_correction_bias"] = (experts.routed,)
    for index in range(experts.routed):
        for name, rows, columns in (
            ("gate_proj", experts.intermediate_size, g.hidden_size),
            ("up_proj", experts.intermediate_size, g.hidden_size),
            ("down_proj", g.hidden_size, experts.intermediate_size),
        ):
            shapes |= _matrix(f"mlp.experts.{index}.{name}", rows, columns)
    if experts.shared_intermediate_size:
        shapes |= gated(g, "mlp.shared_experts", experts.shared_intermediate_size)
    return shapes


def _matrix(name: str, rows: int, columns: int, has_bias: bool = False) -> Shapes:
    shapes: Shapes = {f"{name}.weight": (rows, columns)}
    return shapes | {f"{name}.bias": (rows,)} if has_bias else shapes
