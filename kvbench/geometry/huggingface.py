"""A model's geometry from its Hugging Face `config.json`, by the rules of each family.

A field that is absent or null takes the default of that family's configuration class, because published configs
leave such fields out. Both spellings of rotary settings are read: `rope_theta` + `rope_scaling`, and
`rope_parameters` (one object, or one per layer type).
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvbench.errors import UsageError
from kvbench.geometry.fields import Fields
from kvbench.geometry.model import Experts, LatentShape, LayerGroup, ModelGeometry
from kvbench.geometry.weights import with_parameters

if TYPE_CHECKING:
    from collections.abc import Callable

FULL, WINDOW = "full_attention", "sliding_attention"
LARGEST_CONFIG_BYTES = 16 << 20
_REFETCH = "the file is damaged: fetch it again"
MOST_LAYERS = 10_000
_GELU = "gelu_pytorch_tanh"


def geometry_from_folder(path: str | Path) -> ModelGeometry:
    """Geometry of the checkpoint in `path`, a folder with `config.json` or that file itself.

    Raises `UsageError` for a missing, unreadable or malformed file and for an architecture that is not supported.
    """
    file = Path(path) if Path(path).is_file() else Path(path) / "config.json"
    return geometry_from_config(_read(file), file.resolve().parent.name or "model", str(file))


def geometry_from_config(config: dict[str, Any], name: str, source: str) -> ModelGeometry:
    """Geometry from the object of a `config.json`; `source` is what error messages call it."""
    whole = Fields(config, source)
    family = whole.text("model_type", "")
    reader = FAMILIES.get(family)
    if reader is None:
        raise UsageError(
            f"{source}: architecture {family!r} is not supported" if family else f"{source}: no model_type",
            hint=f"supported model_type: {', '.join(FAMILIES)}",
        )
    return with_parameters(replace(reader(whole), name=name, source=source, family=family))


def _read(file: Path) -> dict[str, Any]:
    try:
        if file.stat().st_size > LARGEST_CONFIG_BYTES:
            raise UsageError(f"{file} is too large to be a config.json", hint=_REFETCH)
        config = json.loads(file.read_bytes())
    except FileNotFoundError:
        raise UsageError(f"{file} does not exist", hint="give a folder that holds a config.json") from None
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror}", hint="check the file's permissions") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{file} is not valid JSON: {error}", hint=_REFETCH) from None
    if not isinstance(config, dict):
        raise UsageError(f"{file} holds {type(config).__name__}, not an object", hint="a config.json is one object")
    return config


@dataclass(frozen=True, slots=True)
class _Defaults:
    """What a family assumes for absent fields. `kv_heads` and `head_dim` None: the query heads, hidden ÷ heads."""

    kv_heads: int | None = None
    head_dim: int | None = None
    heads: int | None = None
    vocab_size: int | None = None
    max_context: int | None = None
    eps: float = 1e-6
    tied: bool = False
    theta: float = 10_000.0


def _llama(c: Fields) -> ModelGeometry:
    g = _base(c, _Defaults(max_context=2048))
    bias = c.flag("attention_bias", False)
    return replace(g, attention_bias=bias, output_bias=bias, mlp_bias=c.flag("mlp_bias", False))


def _mistral(c: Fields) -> ModelGeometry:
    g = _base(c, _Defaults(kv_heads=8, max_context=131_072))
    window = c.maybe_count("sliding_window") if "sliding_window" in c.values else 4096
    return _grouped(g, [FULL if window is None else WINDOW] * g.num_layers, window)


def _qwen2(c: Fields) -> ModelGeometry:
    g = _base(c, _Defaults(kv_heads=32, max_context=32_768))
    return _qwen_windows(c, replace(g, attention_bias=True))


def _qwen3(c: Fields) -> ModelGeometry:
    g = _base(c, _Defaults(kv_heads=32, head_dim=128, max_context=32_768))
    bias = c.flag("attention_bias", False)
    return _qwen_windows(c, replace(g, attention_bias=bias, output_bias=bias, qk_norm=True))


def _qwen_windows(c: Fields, g: ModelGeometry) -> ModelGeometry:
    """Without `layer_types`, layers from `max_window_layers` on slide, and only under `use_sliding_window`."""
    window = c.maybe_count("sliding_window") if c.flag("use_sliding_window", False) else None
    first = c.count("max_window_layers", 28, least=0)
    slides = [window is not None and i >= first for i in range(g.num_layers)]
    return _grouped(g, _layer_types(c, g, [WINDOW if s else FULL for s in slides]), window)


def _gemma2(c: Fields) -> ModelGeometry:
    g = _base(c, _Defaults(4, 256, 8, 256_000, 8192, tied=True), act="hidden_activation", default_act=_GELU)
    if c.flag("use_bidirectional_attention", False):
        raise UsageError(f"{c.where}: attention in both directions", hint="without a causal mask there is no KV cache")
    bias = c.flag("attention_bias", False)
    g = replace(
        g,
        attention_bias=bias,
        output_bias=bias,
        norms_per_layer=4,
        query_scalar=c.number("query_pre_attn_scalar", 256.0),
        score_cap=_cap(c, "attn_logit_softcapping", 50.0),
        logit_cap=_cap(c, "final_logit_softcapping", 30.0),
    )
    types = [FULL if i % 2 else WINDOW for i in range(g.num_layers)]
    return _grouped(g, _layer_types(c, g, types), c.count("sliding_window", 4096))


def _cap(c: Fields, key: str, default: float) -> float | None:
    """A soft cap; null is none, absent the family's own."""
    return c.maybe_number(key) if key in c.values else default


def _gemma3(c: Fields) -> ModelGeometry:
    text = c.section("text_config")
    if text is None:
        raise UsageError(f"{c.where}: field 'text_config' is missing", hint="text-only models say gemma3_text")
    return _gemma3_text(text)


def _gemma3_text(c: Fields) -> ModelGeometry:
    defaults = _Defaults(4, 256, 8, 262_208, 131_072, tied=True, theta=1e6)
    g = _base(c, defaults, act="hidden_activation", default_act=_GELU)
    pattern = c.count("sliding_window_pattern", c.count("_sliding_window_pattern", 6))
    types = [FULL if (i + 1) % pattern == 0 else WINDOW for i in range(g.num_layers)]
    bias = c.flag("attention_bias", False)
    if c.flag("use_bidirectional_attention", False):
        raise UsageError(f"{c.where}: attention in both directions", hint="without a causal mask there is no KV cache")
    g = replace(
        g,
        attention_bias=bias,
        output_bias=bias,
        qk_norm=True,
        norms_per_layer=4,
        rope_local_theta=_local_theta(c),
        query_scalar=c.number("query_pre_attn_scalar", 256.0),
        logit_cap=c.maybe_number("final_logit_softcapping"),
    )
    return _grouped(g, _layer_types(c, g, types), c.count("sliding_window", 4096))


def _local_theta(c: Fields) -> float:
    """The rotary base of sliding layers, from either spelling; no published model scales it."""
    local = c.number("rope_local_base_freq", 10_000.0)
    nested = c.section("rope_parameters")
    sliding = nested.section(WINDOW) if nested else None
    if sliding is None:
        return local
    if sliding.text("rope_type", "default") != "default":
        raise UsageError(f"{c.where}: a rotary scaling of {WINDOW} layers is not supported")
    return sliding.number("rope_theta", local)


def _gpt_oss(c: Fields) -> ModelGeometry:
    g = _base(c, _Defaults(8, 64, 64, 201_088, 131_072, eps=1e-5, theta=150_000.0))
    bias = c.flag("attention_bias", True)
    experts = Experts(
        routed=c.count("num_local_experts", 128),
        per_token=c.count("num_experts_per_tok", c.count("experts_per_token", 4)),
        intermediate_size=g.intermediate_size,
        biased=True,
        router_bias=True,
        swiglu_alpha=c.number("swiglu_alpha", 1.702),
        swiglu_limit=c.number("swiglu_limit", 7.0),
    )
    g = replace(g, attention_bias=bias, output_bias=bias, attention_sinks=True, experts=_checked(c, experts))
    types = [FULL if i % 2 else WINDOW for i in range(g.num_layers)]
    return _grouped(g, _layer_types(c, g, types), c.count("sliding_window", 128))


def _deepseek_v2(c: Fields) -> ModelGeometry:
    """Groups of experts count only under the method that names them."""
    g = _deepseek(c, first_dense=0, max_context=2048)
    g = replace(g, mlp_bias=c.flag("mlp_bias", False), rope_interleaved=True)
    if g.experts is None:
        return g
    method = c.text("topk_method", "greedy")
    if method not in ("greedy", "group_limited_greedy"):
        raise UsageError(f"{c.where}: topk_method {method!r} is not supported")
    is_grouped = method == "group_limited_greedy"
    groups = (c.count("n_group", 1), c.count("topk_group", 1)) if is_grouped else (1, 1)
    return replace(g, experts=_routed(c, g.experts, groups, c.number("routed_scaling_factor", 1.0)))


def _deepseek_v3(c: Fields) -> ModelGeometry:
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
    g = _base(c, _Defaults(head_dim=query_dim, max_context=max_context), head_dim_key="qk_head_dim")
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
        raise UsageError(f"{c.where}: moe_layer_freq other than 1 is not supported")
    inner = c.count("moe_intermediate_size")
    experts = Experts(
        routed=c.count("n_routed_experts"),
        per_token=c.count("num_experts_per_tok"),
        intermediate_size=inner,
        shared_intermediate_size=c.count("n_shared_experts", 0, least=0) * inner,
        first_layer=first_layer,
    )
    return _checked(c, experts)


def _routed(
    c: Fields, experts: Experts, groups: tuple[int, int], weight_scale: float, least_in_group: int = 1
) -> Experts:
    count, taken = groups
    size = experts.routed // count
    if experts.routed % count or taken > count or size < least_in_group or taken * size < experts.per_token:
        raise UsageError(
            f"{c.where}: {experts.per_token} of {experts.routed} experts cannot come from {taken} of {count} groups"
        )
    return replace(experts, groups=count, groups_per_token=taken, weight_scale=weight_scale)


def _checked(c: Fields, experts: Experts) -> Experts:
    if experts.per_token > experts.routed:
        raise UsageError(f"{c.where}: {experts.per_token} experts per token, but only {experts.routed} experts")
    return experts


def _base(
    c: Fields,
    defaults: _Defaults,
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


def _kv_heads(c: Fields, heads: int, defaults: _Defaults) -> int:
    """Null means one KV head per query head; absent means the family's own default."""
    absent = "num_key_value_heads" not in c.values
    kv_heads = c.count("num_key_value_heads", (defaults.kv_heads if absent else None) or heads)
    if heads % kv_heads:
        raise UsageError(f"{c.where}: {heads} query heads do not divide among {kv_heads} KV heads")
    return kv_heads


def _head_dim(c: Fields, hidden: int, heads: int, key: str, defaults: _Defaults) -> int:
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


def _layer_types(c: Fields, g: ModelGeometry, default: list[str]) -> list[str]:
    types = c.names("layer_types") or default
    unknown = sorted(set(types) - {FULL, WINDOW})
    if unknown:
        raise UsageError(f"{c.where}: layer type {unknown[0]!r} is not supported", hint=f"supported: {FULL}, {WINDOW}")
    if len(types) != g.num_layers:
        raise UsageError(f"{c.where}: layer_types names {len(types)} layers, num_hidden_layers is {g.num_layers}")
    return types


def _grouped(g: ModelGeometry, types: list[str], window: int | None) -> ModelGeometry:
    """Full-attention layers in one group, sliding ones in another, empty groups left out."""
    full = tuple(i for i, t in enumerate(types) if t == FULL)
    sliding = tuple(i for i, t in enumerate(types) if t == WINDOW)
    if sliding and window is None:
        raise UsageError(f"{g.source}: sliding layers without a sliding_window")
    shape = (g.kv_heads, g.head_dim, g.head_dim)
    groups = (LayerGroup("full", full, *shape), LayerGroup("window", sliding, *shape, window))
    return replace(g, groups=tuple(group for group in groups if group.layers))


FAMILIES: dict[str, Callable[[Fields], ModelGeometry]] = {
    "llama": _llama,
    "mistral": _mistral,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "gemma2": _gemma2,
    "gemma3": _gemma3,
    "gemma3_text": _gemma3_text,
    "gpt_oss": _gpt_oss,
    "deepseek_v2": _deepseek_v2,
    "deepseek_v3": _deepseek_v3,
}
