"""One reader for each family: `model_type` of a `config.json` → geometry, by the rules of its configuration class."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kvbench.errors import UsageError
from kvbench.geometry.decoder import FULL, WINDOW, Defaults, checked_experts, decoder, grouped, layer_types
from kvbench.geometry.deepseek import deepseek_v2, deepseek_v3
from kvbench.geometry.fields import Fields
from kvbench.geometry.model import Experts, ModelGeometry

if TYPE_CHECKING:
    from collections.abc import Callable

_GELU = "gelu_pytorch_tanh"


def _llama(c: Fields) -> ModelGeometry:
    g = decoder(c, Defaults(max_context=2048))
    bias = c.flag("attention_bias", False)
    return replace(g, attention_bias=bias, output_bias=bias, mlp_bias=c.flag("mlp_bias", False))


def _mistral(c: Fields) -> ModelGeometry:
    g = decoder(c, Defaults(kv_heads=8, max_context=131_072))
    window = c.maybe_count("sliding_window") if "sliding_window" in c.values else 4096
    return grouped(g, [FULL if window is None else WINDOW] * g.num_layers, window)


def _qwen2(c: Fields) -> ModelGeometry:
    g = decoder(c, Defaults(kv_heads=32, max_context=32_768))
    return _qwen_windows(c, replace(g, attention_bias=True))


def _qwen3(c: Fields) -> ModelGeometry:
    g = decoder(c, Defaults(kv_heads=32, head_dim=128, max_context=32_768))
    bias = c.flag("attention_bias", False)
    return _qwen_windows(c, replace(g, attention_bias=bias, output_bias=bias, qk_norm=True))


def _qwen_windows(c: Fields, g: ModelGeometry) -> ModelGeometry:
    """Without `layer_types`, layers from `max_window_layers` on slide, and only under `use_sliding_window`."""
    window = c.maybe_count("sliding_window") if c.flag("use_sliding_window", False) else None
    first = c.count("max_window_layers", 28, least=0)
    slides = [window is not None and i >= first for i in range(g.num_layers)]
    return grouped(g, layer_types(c, g, [WINDOW if s else FULL for s in slides]), window)


def _gemma2(c: Fields) -> ModelGeometry:
    g = decoder(c, Defaults(4, 256, 8, 256_000, 8192, tied=True), act="hidden_activation", default_act=_GELU)
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
    return grouped(g, layer_types(c, g, types), c.count("sliding_window", 4096))


def _cap(c: Fields, key: str, default: float) -> float | None:
    """A soft cap; null is none, absent the family's own."""
    return c.maybe_number(key) if key in c.values else default


def _gemma3(c: Fields) -> ModelGeometry:
    text = c.section("text_config")
    if text is None:
        raise UsageError(f"{c.where}: field 'text_config' is missing", hint="text-only models say gemma3_text")
    return _gemma3_text(text)


def _gemma3_text(c: Fields) -> ModelGeometry:
    defaults = Defaults(4, 256, 8, 262_208, 131_072, tied=True, theta=1e6)
    g = decoder(c, defaults, act="hidden_activation", default_act=_GELU)
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
    return grouped(g, layer_types(c, g, types), c.count("sliding_window", 4096))


def _local_theta(c: Fields) -> float:
    """The rotary base of sliding layers, from either spelling; no published model scales it."""
    local = c.number("rope_local_base_freq", 10_000.0)
    nested = c.section("rope_parameters")
    sliding = nested.section(WINDOW) if nested else None
    if sliding is None:
        return local
    if sliding.text("rope_type", "default") != "default":
        raise UsageError(
            f"{c.where}: a rotary scaling of {WINDOW} layers is not supported",
            hint="their rope_type is default in published models",
        )
    return sliding.number("rope_theta", local)


def _gpt_oss(c: Fields) -> ModelGeometry:
    g = decoder(c, Defaults(8, 64, 64, 201_088, 131_072, eps=1e-5, theta=150_000.0))
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
    g = replace(g, attention_bias=bias, output_bias=bias, attention_sinks=True, experts=checked_experts(c, experts))
    types = [FULL if i % 2 else WINDOW for i in range(g.num_layers)]
    return grouped(g, layer_types(c, g, types), c.count("sliding_window", 128))


FAMILIES: dict[str, Callable[[Fields], ModelGeometry]] = {
    "llama": _llama,
    "mistral": _mistral,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "gemma2": _gemma2,
    "gemma3": _gemma3,
    "gemma3_text": _gemma3_text,
    "gpt_oss": _gpt_oss,
    "deepseek_v2": deepseek_v2,
    "deepseek_v3": deepseek_v3,
}
