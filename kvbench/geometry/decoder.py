"""What the `config.json` of every decoder has, read with its family's defaults for what is absent."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from kvbench.errors import UsageError
from kvbench.geometry.fields import Fields
from kvbench.geometry.model import Experts, LayerGroup, ModelGeometry

FULL, WINDOW = "full_attention", "sliding_attention"
MOST_LAYERS = 10_000


@dataclass(frozen=True, slots=True)
class Defaults:
    """What a family assumes for absent fields. `kv_heads` and `head_dim` None: the query heads, hidden ÷ heads."""

    kv_heads: int | None = None
    head_dim: int | None = None
    heads: int | None = None
    vocab_size: int | None = None
    max_context: int | None = None
    eps: float = 1e-6
    tied: bool = False
    theta: float = 10_000.0


def decoder(
    c: Fields,
    defaults: Defaults,
    *,
    act: str = "hidden_act",
    default_act: str = "silu",
    head_dim_key: str = "head_dim",
) -> ModelGeometry:
    """What every family has, as one full-attention group; name, source and family are filled in by the caller."""
    layers = c.count("num_hidden_layers")
    if layers > MOST_LAYERS:
        raise UsageError(f"{c.where}: {layers} layers", hint=f"at most {MOST_LAYERS:,} are read")
    heads = c.count("num_attention_heads", defaults.heads)
    hidden = c.count("hidden_size")
    kv_heads = _kv_heads(c, heads, defaults)
    head_dim = _head_dim(c, hidden, heads, head_dim_key, defaults)
    theta, scaling = _rope(c, defaults.theta)
    return ModelGeometry(
        name="",
        source=c.where,
        family="",
        num_layers=layers,
        hidden_size=hidden,
        intermediate_size=c.count("intermediate_size"),
        query_heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocab_size=c.count("vocab_size", defaults.vocab_size),
        max_context=c.count("max_position_embeddings", defaults.max_context),
        groups=(LayerGroup("full", tuple(range(layers)), kv_heads, head_dim, head_dim),),
        rms_norm_eps=c.number("rms_norm_eps", defaults.eps),
        rope_theta=theta,
        rope_scaling=scaling,
        hidden_act=c.text(act, default_act),
        tie_word_embeddings=c.flag("tie_word_embeddings", defaults.tied),
    )


def _kv_heads(c: Fields, heads: int, defaults: Defaults) -> int:
    """Null means one KV head per query head; absent means the family's own default."""
    absent = "num_key_value_heads" not in c.values
    kv_heads = c.count("num_key_value_heads", (defaults.kv_heads if absent else None) or heads)
    if heads % kv_heads:
        raise UsageError(
            f"{c.where}: {heads} query heads do not divide among {kv_heads} KV heads",
            hint="num_attention_heads is a multiple of num_key_value_heads",
        )
    return kv_heads


def _head_dim(c: Fields, hidden: int, heads: int, key: str, defaults: Defaults) -> int:
    if c.has(key) or defaults.head_dim is not None:
        return c.count(key, defaults.head_dim)
    if hidden % heads:
        raise UsageError(
            f"{c.where}: hidden_size {hidden} does not divide by {heads} heads", hint="the config should say head_dim"
        )
    return hidden // heads


def _rope(c: Fields, default_theta: float) -> tuple[float, dict[str, Any] | None]:
    """Base and scaling of the full-attention layers, from either spelling."""
    theta = c.number("rope_theta", default_theta)
    found = c.section("rope_parameters")
    if found is not None and any(isinstance(v, dict) for v in found.values.values()):
        found = found.section(FULL)
    scaling = found or c.section("rope_scaling")
    if scaling is None:
        return theta, None
    rest = {k: v for k, v in scaling.values.items() if k != "rope_theta"}
    kind = rest.get("rope_type", rest.get("type", "default"))
    is_plain = kind == "default" and not set(rest) - {"rope_type", "type"}
    return scaling.number("rope_theta", theta), None if is_plain else rest


def layer_types(c: Fields, g: ModelGeometry, default: list[str]) -> list[str]:
    """`full_attention` or `sliding_attention` for each layer; `UsageError` for another type or number of them."""
    types = c.names("layer_types") or default
    unknown = sorted(set(types) - {FULL, WINDOW})
    if unknown:
        raise UsageError(f"{c.where}: layer type {unknown[0]!r} is not supported", hint=f"supported: {FULL}, {WINDOW}")
    if len(types) != g.num_layers:
        raise UsageError(
            f"{c.where}: layer_types names {len(types)} layers, num_hidden_layers is {g.num_layers}",
            hint="one of the two was edited: layer_types has one entry a layer",
        )
    return types


def grouped(g: ModelGeometry, types: list[str], window: int | None) -> ModelGeometry:
    """Full-attention layers in one group, sliding ones in another, empty groups left out."""
    full = tuple(i for i, t in enumerate(types) if t == FULL)
    sliding = tuple(i for i, t in enumerate(types) if t == WINDOW)
    if sliding and window is None:
        raise UsageError(f"{g.source}: sliding layers without a sliding_window", hint="sliding_window is in tokens")
    shape = (g.kv_heads, g.head_dim, g.head_dim)
    groups = (LayerGroup("full", full, *shape), LayerGroup("window", sliding, *shape, window))
    return replace(g, groups=tuple(group for group in groups if group.layers))


def checked_experts(c: Fields, experts: Experts) -> Experts:
    """The experts as they are; `UsageError` when a token takes more than there are."""
    if experts.per_token > experts.routed:
        raise UsageError(
            f"{c.where}: {experts.per_token} experts per token, but only {experts.routed} experts",
            hint="num_experts_per_tok is at most the number of routed experts",
        )
    return experts
