"""`config.json` import: against the configuration classes and modules of transformers, and against damaged files."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbench.errors import UsageError
from kvbench.geometry.huggingface import FAMILIES, geometry_from_config, geometry_from_folder

COMMON: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 128, "max_position_embeddings": 512,
}  # fmt: skip
LATENT: dict[str, Any] = {
    "kv_lora_rank": 32, "q_lora_rank": 24, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8,
    "n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
    "first_k_dense_replace": 1, "num_key_value_heads": 4, "n_group": 1, "topk_group": 1,
}  # fmt: skip
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("Llama", {}),
    ("Llama", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
    ("Llama", {"num_key_value_heads": None, "head_dim": None}),
    ("Mistral", {"sliding_window": 32}),
    ("Mistral", {"sliding_window": None, "head_dim": 24}),
    ("Qwen2", {"tie_word_embeddings": True}),
    ("Qwen2", {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 2}),
    ("Qwen3", {}),
    ("Qwen3", {"attention_bias": True, "use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}),
    ("Gemma2", {"sliding_window": 16}),
    ("Gemma3Text", {"sliding_window": 16}),
    ("Gemma3Text", {"sliding_window": 16, "tie_word_embeddings": False, "attention_bias": True}),
    ("GptOss", {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 16}),
    ("DeepseekV2", LATENT),
    ("DeepseekV2", {**LATENT, "q_lora_rank": None, "attention_bias": True, "first_k_dense_replace": 2}),
    ("DeepseekV2", {**LATENT, "mlp_bias": True, "topk_method": "group_limited_greedy", "n_group": 2}),
    ("DeepseekV3", LATENT),
]


def _theirs(kind: str, more: dict[str, Any]) -> Any:
    transformers = pytest.importorskip("transformers")
    return getattr(transformers, f"{kind}Config")(**{**COMMON, **more})


def _their_weights(config: Any) -> int:
    """Weights of Hugging Face's own module, the router's correction bias (a buffer there) included."""
    import torch
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    correction = sum(b.numel() for name, b in model.named_buffers() if name.endswith("e_score_correction_bias"))
    return sum(p.numel() for p in model.parameters()) + correction


@pytest.mark.parametrize(("kind", "more"), VARIANTS)
def test_weights_equal_those_of_the_transformers_module(kind: str, more: dict[str, Any], tmp_path: Path) -> None:
    config = _theirs(kind, more)
    config.save_pretrained(tmp_path)
    assert geometry_from_folder(tmp_path).parameters == _their_weights(config)


@pytest.mark.parametrize(("kind", "more"), VARIANTS)
def test_shape_equals_that_of_the_transformers_config(kind: str, more: dict[str, Any], tmp_path: Path) -> None:
    config = _theirs(kind, more)
    config.save_pretrained(tmp_path)
    g = geometry_from_folder(tmp_path)
    assert (g.num_layers, g.hidden_size, g.query_heads, g.vocab_size) == (4, 64, 4, 128)
    assert (g.max_context, g.rms_norm_eps) == (512, config.rms_norm_eps)
    assert g.tie_word_embeddings == config.tie_word_embeddings
    types = getattr(config, "layer_types", None)
    if types:
        windows = [i for i, kind in enumerate(types) if kind == "sliding_attention"]
        ours = [i for group in g.groups if group.kind == "window" for i in group.layers]
        assert ours == windows
        assert all(group.window == config.sliding_window for group in g.groups if group.kind == "window")


def _config(**more: Any) -> dict[str, Any]:
    return {"model_type": "llama", **COMMON, **more}


def test_head_dim_and_kv_heads_have_the_family_defaults() -> None:
    bare = {k: v for k, v in _config().items() if k not in ("head_dim", "num_key_value_heads")}
    g = geometry_from_config(bare, "m", "config.json")
    assert (g.head_dim, g.kv_heads) == (16, 4)
    g = geometry_from_config({**bare, "model_type": "qwen3", "num_attention_heads": 32}, "m", "config.json")
    assert (g.head_dim, g.kv_heads) == (128, 32)


def test_both_spellings_of_rope_are_the_same() -> None:
    scaling = {"rope_type": "llama3", "factor": 8.0}
    old = geometry_from_config(_config(rope_theta=5e5, rope_scaling=scaling), "m", "c")
    new = geometry_from_config(_config(rope_parameters={"rope_theta": 5e5, **scaling}), "m", "c")
    assert (old.rope_theta, old.rope_scaling) == (new.rope_theta, new.rope_scaling) == (5e5, scaling)


def test_plain_rope_has_no_scaling() -> None:
    g = geometry_from_config(_config(rope_parameters={"rope_theta": 7.0, "rope_type": "default"}), "m", "c")
    assert (g.rope_theta, g.rope_scaling) == (7.0, None)


def test_rope_by_layer_type_gives_both_bases() -> None:
    rope = {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    }
    g = geometry_from_config({"model_type": "gemma3_text", **COMMON, "rope_parameters": rope}, "m", "c")
    assert (g.rope_theta, g.rope_local_theta, g.rope_scaling) == (1e6, 1e4, {"rope_type": "linear", "factor": 8.0})


def test_qwen2_has_qkv_bias_and_none_on_the_output() -> None:
    g = geometry_from_config(_config(model_type="qwen2"), "m", "c")
    assert (g.attention_bias, g.output_bias) == (True, False)
    g = geometry_from_config(_config(attention_bias=True), "m", "c")
    assert (g.attention_bias, g.output_bias) == (True, True)


def test_multimodal_gemma_reads_its_text_config() -> None:
    g = geometry_from_config({"model_type": "gemma3", "text_config": COMMON, "vision_config": {}}, "m", "c")
    assert (g.family, g.num_layers, g.norms_per_layer) == ("gemma3", 4, 4)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"hidden_size": None}, "hidden_size"),
        ({"hidden_size": "64"}, "hidden_size"),
        ({"num_hidden_layers": 0}, "num_hidden_layers"),
        ({"num_hidden_layers": True}, "num_hidden_layers"),
        ({"num_hidden_layers": 10**9}, "layers"),
        ({"vocab_size": 10**30}, "vocab_size"),
        ({"vocab_size": float("nan")}, "vocab_size"),
        ({"intermediate_size": -4}, "intermediate_size"),
        ({"intermediate_size": 2.5}, "intermediate_size"),
        ({"num_key_value_heads": 3}, "KV heads"),
        ({"head_dim": None, "hidden_size": 63}, "hidden_size"),
        ({"rope_theta": -1}, "rope_theta"),
        ({"rope_scaling": "llama3"}, "rope_scaling"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings"),
        ({"model_type": "qwen3", "layer_types": ["full_attention"]}, "layer_types"),
        ({"model_type": "qwen3", "layer_types": ["linear_attention"] * 4}, "linear_attention"),
        ({"model_type": "qwen3", "layer_types": ["sliding_attention"] * 4}, "sliding_window"),
        ({"model_type": "gemma3"}, "text_config"),
        ({"model_type": "gpt_oss", "num_local_experts": 2, "num_experts_per_tok": 3}, "experts"),
        ({"model_type": "deepseek_v3", "n_routed_experts": 4, "moe_layer_freq": 2}, "moe_layer_freq"),
    ],
)
def test_a_wrong_field_is_named(change: dict[str, Any], named: str) -> None:
    with pytest.raises(UsageError) as caught:
        geometry_from_config(_config(**change), "m", "some/config.json")
    assert named in caught.value.message
    assert "some/config.json" in caught.value.message


@pytest.mark.parametrize("kind", ["mamba", "", None, 7])
def test_unknown_architecture_lists_what_is_supported(kind: object) -> None:
    with pytest.raises(UsageError) as caught:
        geometry_from_config(_config(model_type=kind), "m", "c")
    assert kind == 7 or "qwen3" in (caught.value.hint or "")


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '"llama"', "\x00", "{" * 100_000, '{"a":1}{', "[" * 100_000])
def test_a_damaged_file_is_one_clear_error(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(UsageError):
        geometry_from_folder(tmp_path)


def test_a_folder_without_config_says_so(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        geometry_from_folder(tmp_path)


def test_the_file_itself_may_be_named(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(_config()))
    assert geometry_from_folder(file) == geometry_from_folder(tmp_path)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=4,
)
KEYS = [*COMMON, *LATENT, "rope_theta", "rope_scaling", "rope_parameters", "layer_types", "sliding_window",
        "attention_bias", "text_config", "num_local_experts", "sliding_window_pattern", "hidden_act",
        "use_sliding_window", "max_window_layers", "tie_word_embeddings", "rms_norm_eps"]  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(sorted(FAMILIES)), st.dictionaries(st.sampled_from(KEYS), JSON, max_size=3))
def test_no_config_escapes_as_anything_but_a_usage_error(family: str, damage: dict[str, Any]) -> None:
    config = {"model_type": family, **COMMON, **LATENT, "text_config": dict(COMMON), **damage}
    with suppress(UsageError):
        g = geometry_from_config(config, "m", "c")
        assert g.parameters is not None
        assert g.parameters > 0
