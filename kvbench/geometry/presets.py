"""Named models: the numbers of their published `config.json`, each with its source.

A preset goes through the same reader as a checkpoint's own config, so it can be checked field by field against
the file that it names. The `tiny-*` and `small-*` ones are ours, sized so that a CPU serves real requests with them.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from kvbench.errors import UsageError
from kvbench.geometry.huggingface import geometry_from_config
from kvbench.geometry.model import ModelGeometry


def preset_names() -> tuple[str, ...]:
    """All presets, in the order of the table."""
    return tuple(_PRESETS)


@cache
def preset(name: str) -> ModelGeometry:
    """The geometry of a preset by its exact name; `UsageError` when there is none."""
    if name not in _PRESETS:
        raise UsageError(f"unknown model preset {name!r}", hint=f"one of {', '.join(_PRESETS)}")
    source, config = _PRESETS[name]
    return geometry_from_config(config, name, source)


def _tiny(family: str, **more: Any) -> dict[str, Any]:
    return {
        "model_type": family, "hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 4,
        "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 2048,
        "max_position_embeddings": 16_384, "rms_norm_eps": 1e-6, "rope_theta": 10_000.0, **more,
    }  # fmt: skip


def _llama3_rope(factor: float) -> dict[str, Any]:
    return {
        "factor": factor, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192, "rope_type": "llama3",
    }  # fmt: skip


def _deepseek_rope(mscale: float) -> dict[str, Any]:
    return {
        "beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": mscale, "mscale_all_dim": mscale,
        "original_max_position_embeddings": 4096, "type": "yarn",
    }  # fmt: skip


_PRESETS: dict[str, tuple[str, dict[str, Any]]] = {
    "tiny-llama": ("kvbench: llama shape for a CPU", _tiny("llama")),
    "tiny-qwen2": ("kvbench: qwen2 shape for a CPU", _tiny("qwen2", tie_word_embeddings=True)),
    "tiny-qwen3": ("kvbench: qwen3 shape for a CPU", _tiny("qwen3")),
    "tiny-mistral": ("kvbench: mistral shape for a CPU, a window of 64 in every layer", _tiny(
        "mistral", sliding_window=64,
    )),
    "tiny-gemma3": ("kvbench: gemma3 shape for a CPU, one full layer in four, windows of 64", _tiny(
        "gemma3_text", sliding_window=64, sliding_window_pattern=4, rope_theta=1_000_000.0,
        rope_local_base_freq=10_000.0, query_pre_attn_scalar=32, tie_word_embeddings=True,
    )),
    "tiny-gpt-oss": ("kvbench: gpt-oss shape for a CPU, every other layer a window of 64, 2 of 8 experts", _tiny(
        "gpt_oss", sliding_window=64, num_local_experts=8, num_experts_per_tok=2, intermediate_size=256,
        rope_parameters={
            "rope_type": "yarn", "factor": 4.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
            "original_max_position_embeddings": 4096, "rope_theta": 150_000.0,
        },
    )),
    "tiny-mha": ("kvbench: llama shape for a CPU, a KV head per query head", _tiny("llama", num_key_value_heads=8)),
    "tiny-gqa": ("kvbench: llama shape for a CPU, four query heads per KV head", _tiny("llama")),
    "tiny-deepseek": (
        "kvbench: deepseek_v2 shape for a CPU, dense: a latent of 4 heads' width and a rotary key of half a head's", {
        **_tiny("deepseek_v2", num_key_value_heads=8), "head_dim": None, "q_lora_rank": None, "kv_lora_rank": 128,
        "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 32,
    }),
    "small-llama": ("kvbench: llama shape for a CPU, 8 layers × 512", {
        "model_type": "llama", "hidden_size": 512, "intermediate_size": 1376, "num_hidden_layers": 8,
        "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 64, "vocab_size": 32_000,
        "max_position_embeddings": 16_384, "rms_norm_eps": 1e-6, "rope_theta": 10_000.0,
    }),
    "llama-3.2-1b": ("config.json of meta-llama/Llama-3.2-1B", {
        "model_type": "llama", "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
        "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 128_256,
        "max_position_embeddings": 131_072, "rms_norm_eps": 1e-5, "rope_theta": 500_000.0,
        "rope_scaling": _llama3_rope(32.0), "tie_word_embeddings": True,
    }),
    "llama-3.1-8b": ("config.json of meta-llama/Llama-3.1-8B", {
        "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14_336, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128_256,
        "max_position_embeddings": 131_072, "rms_norm_eps": 1e-5, "rope_theta": 500_000.0,
        "rope_scaling": _llama3_rope(8.0), "tie_word_embeddings": False,
    }),
    "llama-3.1-70b": ("config.json of meta-llama/Llama-3.1-70B", {
        "model_type": "llama", "hidden_size": 8192, "intermediate_size": 28_672, "num_hidden_layers": 80,
        "num_attention_heads": 64, "num_key_value_heads": 8, "vocab_size": 128_256,
        "max_position_embeddings": 131_072, "rms_norm_eps": 1e-5, "rope_theta": 500_000.0,
        "rope_scaling": _llama3_rope(8.0), "tie_word_embeddings": False,
    }),
    "llama-2-7b": ("config.json of meta-llama/Llama-2-7b-hf", {
        "model_type": "llama", "hidden_size": 4096, "intermediate_size": 11_008, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 32, "vocab_size": 32_000,
        "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "rope_theta": 10_000.0, "tie_word_embeddings": False,
    }),
    "qwen2.5-7b": ("config.json of Qwen/Qwen2.5-7B", {
        "model_type": "qwen2", "hidden_size": 3584, "intermediate_size": 18_944, "num_hidden_layers": 28,
        "num_attention_heads": 28, "num_key_value_heads": 4, "vocab_size": 152_064,
        "max_position_embeddings": 131_072, "rms_norm_eps": 1e-6, "rope_theta": 1_000_000.0,
        "max_window_layers": 28, "sliding_window": 131_072, "use_sliding_window": False, "tie_word_embeddings": False,
    }),
    "qwen3-8b": ("config.json of Qwen/Qwen3-8B", {
        "model_type": "qwen3", "hidden_size": 4096, "intermediate_size": 12_288, "num_hidden_layers": 36,
        "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151_936,
        "max_position_embeddings": 40_960, "rms_norm_eps": 1e-6, "rope_theta": 1_000_000.0, "max_window_layers": 36,
        "sliding_window": None, "use_sliding_window": False, "attention_bias": False, "tie_word_embeddings": False,
    }),
    "qwen3-32b": ("config.json of Qwen/Qwen3-32B", {
        "model_type": "qwen3", "hidden_size": 5120, "intermediate_size": 25_600, "num_hidden_layers": 64,
        "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151_936,
        "max_position_embeddings": 40_960, "rms_norm_eps": 1e-6, "rope_theta": 1_000_000.0, "max_window_layers": 64,
        "sliding_window": None, "use_sliding_window": False, "attention_bias": False, "tie_word_embeddings": False,
    }),
    "mistral-7b-v0.1": ("config.json of mistralai/Mistral-7B-v0.1", {
        "model_type": "mistral", "hidden_size": 4096, "intermediate_size": 14_336, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 32_000,
        "max_position_embeddings": 32_768, "rms_norm_eps": 1e-5, "rope_theta": 10_000.0, "sliding_window": 4096,
        "tie_word_embeddings": False,
    }),
    "gemma-3-12b": ("config.json (text_config) of google/gemma-3-12b-pt; the vision tower is not counted", {
        "model_type": "gemma3_text", "hidden_size": 3840, "intermediate_size": 15_360, "num_hidden_layers": 48,
        "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 256, "vocab_size": 262_208,
        "max_position_embeddings": 131_072, "rms_norm_eps": 1e-6, "rope_theta": 1_000_000.0,
        "rope_local_base_freq": 10_000.0, "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024, "sliding_window_pattern": 6, "tie_word_embeddings": True,
    }),
    "gpt-oss-20b": ("config.json of openai/gpt-oss-20b", {
        "model_type": "gpt_oss", "hidden_size": 2880, "intermediate_size": 2880, "num_hidden_layers": 24,
        "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 201_088,
        "max_position_embeddings": 131_072, "rms_norm_eps": 1e-5, "rope_theta": 150_000,
        "rope_scaling": {
            "beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0, "original_max_position_embeddings": 4096,
            "rope_type": "yarn", "truncate": False,
        },
        "sliding_window": 128, "num_local_experts": 32, "num_experts_per_tok": 4, "attention_bias": True,
        "tie_word_embeddings": False,
    }),
    "deepseek-v2-lite": ("config.json of deepseek-ai/DeepSeek-V2-Lite", {
        "model_type": "deepseek_v2", "hidden_size": 2048, "intermediate_size": 10_944, "num_hidden_layers": 27,
        "num_attention_heads": 16, "num_key_value_heads": 16, "vocab_size": 102_400,
        "max_position_embeddings": 163_840, "rms_norm_eps": 1e-6, "rope_theta": 10_000,
        "rope_scaling": _deepseek_rope(0.707), "q_lora_rank": None, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64, "v_head_dim": 128, "n_routed_experts": 64, "n_shared_experts": 2,
        "num_experts_per_tok": 6, "moe_intermediate_size": 1408, "first_k_dense_replace": 1, "moe_layer_freq": 1,
        "attention_bias": False, "tie_word_embeddings": False,
    }),
    "deepseek-v3": ("config.json of deepseek-ai/DeepSeek-V3; the multi-token-prediction module is not counted", {
        "model_type": "deepseek_v3", "hidden_size": 7168, "intermediate_size": 18_432, "num_hidden_layers": 61,
        "num_attention_heads": 128, "num_key_value_heads": 128, "vocab_size": 129_280,
        "max_position_embeddings": 163_840, "rms_norm_eps": 1e-6, "rope_theta": 10_000,
        "rope_scaling": _deepseek_rope(1.0), "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64, "v_head_dim": 128, "n_routed_experts": 256, "n_shared_experts": 1,
        "num_experts_per_tok": 8, "moe_intermediate_size": 2048, "first_k_dense_replace": 3, "moe_layer_freq": 1,
        "attention_bias": False, "tie_word_embeddings": False,
    }),
}  # fmt: skip
