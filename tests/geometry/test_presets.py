"""Presets against published totals, and against Hugging Face's own modules on the meta device."""

from __future__ import annotations

import pytest

from kvbench.errors import UsageError
from kvbench.geometry.presets import preset, preset_names
from kvbench.geometry.resolve import auto_model, resolve_model

PUBLISHED = {
    # number of weights in the safetensors index or model card of each checkpoint
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.1-70b": 70_553_706_496,
    "llama-2-7b": 6_738_415_616,
    "qwen2.5-7b": 7_615_616_512,
    "qwen3-8b": 8_190_735_360,
    "qwen3-32b": 32_762_123_264,
    "mistral-7b-v0.1": 7_241_732_096,
    # Keras publishes 11,765,788,416 for the text model with 262,144 rows of vocabulary; the checkpoint stores 262,208
    "gemma-3-12b": 11_765_788_416 + 64 * 3840,
    "gpt-oss-20b": 20_914_757_184,
    "deepseek-v2-lite": 15_706_484_224,
    "deepseek-v3": 671_026_419_200,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_weight_count_equals_the_published_one(name: str) -> None:
    assert preset(name).parameters == PUBLISHED[name]


@pytest.mark.parametrize(("name", "billions"), [("gpt-oss-20b", 3.6), ("deepseek-v2-lite", 2.4), ("deepseek-v3", 37)])
def test_active_weights_of_experts_match_the_model_card(name: str, billions: float) -> None:
    active = preset(name).active_parameters
    assert active is not None
    assert active / 1e9 == pytest.approx(billions, rel=0.025)


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        ("llama-2-7b", "mha"), ("llama-3.1-8b", "gqa"), ("mistral-7b-v0.1", "gqa+window"),
        ("gemma-3-12b", "gqa+window"), ("gpt-oss-20b", "gqa+window"), ("deepseek-v3", "mla"),
    ],
)  # fmt: skip
def test_attention_mode(name: str, mode: str) -> None:
    assert preset(name).attention_mode == mode


def test_every_preset_names_its_source_and_covers_each_layer_once() -> None:
    for name in preset_names():
        g = preset(name)
        assert g.source
        assert g.name == name
        assert sorted(layer for group in g.groups for layer in group.layers) == list(range(g.num_layers))


def test_the_small_window_models_have_windows_of_64_in_all_layers_and_in_three_of_four() -> None:
    (only,) = preset("tiny-mistral").groups
    assert (only.kind, only.layers, only.window) == ("window", (0, 1, 2, 3), 64)
    full, window = preset("tiny-gemma3").groups
    assert (full.layers, window.layers, window.window) == ((3,), (0, 1, 2), 64)


def test_gemma_has_one_full_layer_in_six_and_gpt_oss_one_in_two() -> None:
    full, window = preset("gemma-3-12b").groups
    assert full.layers == tuple(range(5, 48, 6))
    assert (window.window, len(window.layers)) == (1024, 40)
    full, window = preset("gpt-oss-20b").groups
    assert (window.layers[:3], full.layers[:3], window.window) == ((0, 2, 4), (1, 3, 5), 128)


def test_cpu_presets_are_those_of_the_house() -> None:
    tiny = preset("tiny-llama")
    assert (tiny.num_layers, tiny.hidden_size, tiny.query_heads, tiny.kv_heads) == (4, 256, 8, 2)
    assert (tiny.head_dim, tiny.vocab_size) == (32, 2048)
    small = preset("small-llama")
    assert (small.num_layers, small.hidden_size, small.kv_heads, small.head_dim) == (8, 512, 4, 64)
    assert preset("tiny-qwen2").attention_bias
    assert not preset("tiny-qwen2").output_bias
    assert preset("tiny-qwen3").qk_norm


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("llama-3.1-8", "llama-3.1-8b"), ("meta-llama/Llama-3.1-8B", "llama-3.1-8b"), ("Qwen/Qwen3-8B-FP8", "qwen3-8b")],
)
def test_unknown_model_says_what_was_meant(typed: str, meant: str) -> None:
    with pytest.raises(UsageError) as caught:
        resolve_model(typed)
    assert meant in (caught.value.hint or "")


@pytest.mark.parametrize("typed", ["", "\0", "x" * 5000, "no/such/folder", "[bold]"])
def test_hostile_names_are_one_clear_error(typed: str) -> None:
    with pytest.raises(UsageError):
        resolve_model(typed)


def test_case_of_a_preset_name_does_not_matter() -> None:
    assert resolve_model("Llama-3.1-8B") is preset("llama-3.1-8b")


def test_auto_follows_device_and_memory() -> None:
    assert auto_model("cpu", 1 << 40) == "tiny-llama"
    assert auto_model("cuda", (40 << 30) - 1) == "llama-3.2-1b"
    assert auto_model("cuda", 40 << 30) == "llama-3.1-8b"
