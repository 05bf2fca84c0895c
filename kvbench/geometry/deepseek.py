"""The DeepSeek families: latent attention, and experts that are routed by groups."""

from __future__ import annotations

from dataclasses import replace

from kvbench.errors import UsageError
from kvbench.geometry.decoder import Defaults, checked_experts, decoder
from kvbench.geometry.fields import Fields
from kvbench.geometry.model import Experts, LatentShape, LayerGroup, ModelGeometry


def deepseek_v2(c: Fields) -> ModelGeometry:
    """Groups of experts count only under the method that names them."""
    g = _deepseek(c, first_dense=0, max_context=2048)
    g = replace(g, mlp_bias=c.flag("mlp_bias", False), rope_interleaved=True)
    if g.experts is None:
        return g
    method = c.text("topk_method", "greedy")
    if method not in ("greedy", "group_limited_greedy"):
        raise UsageError(
            f"{c.where}: topk_method {method!r} is not supported", hint="supported: greedy, group_limited_greedy"
        )
    is_grouped = method == "group_limited_greedy"
    groups = (c.count("n_group", 1), c.count("topk_group", 1)) if is_grouped else (1, 1)
    return replace(g, experts=_routed(c, g.experts, groups, c.number("routed_scaling_factor", 1.0)))


def deepseek_v3(c: Fields) -> ModelGeometry:
    """The router's correction bias is stored with the weights."""
    g = _deepseek(c, first_dense=3, max_context=4096)
    g = replace(g, rope_interleaved=c.flag("rope_interleave", True))
    if g.experts is None:
        return g
    experts = replace(g.experts, router_bias=True, normalises=c.flag("norm_topk_prob", True))
    groups = c.count("n_group", 8), c.count("topk_group", 4)
    return replace(g, experts=_routed(c, experts, groups, c.number("routed_scaling_factor", 2.5), least_in_group=2))


def _deepseek(c: Fields, first_dense: int, max_context: int) -> ModelGeometry:
    latent = LatentShape(
        q_lora_rank=c.maybe_count("q_lora_rank") if "q_lora_rank" in c.values else 1536,
        kv_lora_rank=c.count("kv_lora_rank", 512),
        qk_nope_head_dim=c.count("qk_nope_head_dim", 128),
        qk_rope_head_dim=c.count("qk_rope_head_dim", 64),
        v_head_dim=c.count("v_head_dim", 128),
    )
    query_dim = latent.qk_nope_head_dim + latent.qk_rope_head_dim
    g = decoder(c, Defaults(head_dim=query_dim, max_context=max_context), head_dim_key="qk_head_dim")
    bias = c.flag("attention_bias", False)
    width = latent.kv_lora_rank + latent.qk_rope_head_dim
    group = LayerGroup("latent", tuple(range(g.num_layers)), 1, width, 0)
    experts = _deepseek_experts(c, min(c.count("first_k_dense_replace", first_dense, least=0), g.num_layers))
    g = replace(g, attention_bias=bias, output_bias=bias, latent=latent, experts=experts)
    return replace(g, kv_heads=1, head_dim=query_dim, groups=(group,))


def _deepseek_experts(c: Fields, first_layer: int) -> Experts | None:
    if not c.has("n_routed_experts"):
        return None
    if c.count("moe_layer_freq", 1) != 1:
        raise UsageError(
            f"{c.where}: moe_layer_freq other than 1 is not supported",
            hint="every layer behind the first dense ones has experts, as in published models",
        )
    inner = c.count("moe_intermediate_size")
    experts = Experts(
        routed=c.count("n_routed_experts"),
        per_token=c.count("num_experts_per_tok"),
        intermediate_size=inner,
        shared_intermediate_size=c.count("n_shared_experts", 0, least=0) * inner,
        first_layer=first_layer,
    )
    return checked_experts(c, experts)


def _routed(
    c: Fields, experts: Experts, groups: tuple[int, int], weight_scale: float, least_in_group: int = 1
) -> Experts:
    count, taken = groups
    size = experts.routed // count
    if experts.routed % count or taken > count or size < least_in_group or taken * size < experts.per_token:
        raise UsageError(
            f"{c.where}: {experts.per_token} of {experts.routed} experts cannot come from {taken} of {count} groups",
            hint="n_group divides n_routed_experts, and topk_group groups hold num_experts_per_tok of them",
        )
    return replace(experts, groups=count, groups_per_token=taken, weight_scale=weight_scale)
