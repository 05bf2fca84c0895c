"""Bad checkpoints: one clear error, never a traceback."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from kvbench.engine.model import Model, check_folder
from kvbench.errors import KvbenchError, UsageError
from tests.checkpoints import prompts_of, reference_logits, write_checkpoint
from tests.model.plain import PlainAttention, PlainStore, Tables

WEIGHTS = "model.safetensors"
SHAPE = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3}


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint("qwen3-tied", tmp_path_factory.mktemp("pristine"))


@pytest.fixture
def folder(pristine: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(pristine, tmp_path / "model"))


def _edit_tensors(folder: Path, edit: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    tensors = load_file(folder / WEIGHTS)
    edit(tensors)
    save_file(tensors, folder / WEIGHTS)


def _edit_config(folder: Path, **changes: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))


def _last_logits(folder: Path, tokens: list[int]) -> torch.Tensor:
    tables = Tables(1, 4, len(tokens))
    return Model.from_pretrained(folder).forward(tables.step({0: tokens}), PlainStore(), PlainAttention(4))[0]


def test_every_wrong_tensor_is_named_in_one_error(folder: Path) -> None:
    def edit(tensors: dict[str, torch.Tensor]) -> None:
        del tensors["model.layers.1.mlp.up_proj.weight"]
        tensors["model.layers.0.self_attn.q_norm.weight"] = torch.ones(5)
        tensors["model.layers.0.self_attn.extra.weight"] = torch.ones(2)
        tensors["model.norm.weight"] = torch.ones(64, dtype=torch.int32)

    _edit_tensors(folder, edit)
    with pytest.raises(UsageError) as caught:
        Model.from_pretrained(folder)
    for part in ("missing model.layers.1.mlp.up_proj.weight", "q_norm.weight is [5], not [16]",
                 "unexpected model.layers.0.self_attn.extra.weight", "model.norm.weight has dtype I32"):  # fmt: skip
        assert part in caught.value.message
    assert caught.value.hint


def test_a_long_list_of_problems_is_cut_and_counted(folder: Path) -> None:
    _edit_tensors(folder, lambda tensors: [tensors.pop(name) for name in list(tensors)[:-1]])
    with pytest.raises(UsageError, match=r"and \d+ more"):
        Model.from_pretrained(folder)


def test_what_some_writers_add_is_let_through(folder: Path) -> None:
    def edit(tensors: dict[str, torch.Tensor]) -> None:
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
        tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(8)

    _edit_tensors(folder, edit)
    Model.from_pretrained(folder)


def test_shards_are_read_like_a_single_file(pristine: Path, tmp_path: Path) -> None:
    sharded = write_checkpoint("qwen3-tied", tmp_path, shard_size="100KB")
    assert len(list(sharded.glob("*.safetensors"))) > 2
    tokens = prompts_of([9])[0]
    assert torch.equal(_last_logits(sharded, tokens), _last_logits(pristine, tokens))


def test_other_float_dtypes_are_cast(folder: Path) -> None:
    tokens = prompts_of([9])[0]
    before = reference_logits(folder, tokens)[-1]
    _edit_tensors(folder, lambda tensors: tensors.update({k: v.double() for k, v in tensors.items()}))
    assert (_last_logits(folder, tokens) - before).abs().max() < 1e-4
    _edit_tensors(folder, lambda tensors: tensors.update({k: v.bfloat16() for k, v in tensors.items()}))
    assert (_last_logits(folder, tokens) - before).square().mean().sqrt() < 0.1


def _truncate(share: float) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        whole = (folder / WEIGHTS).read_bytes()
        (folder / WEIGHTS).write_bytes(whole[: int(len(whole) * share)])

    return edit


def _write(name: str, data: bytes) -> Callable[[Path], Any]:
    return lambda folder: (folder / name).write_bytes(data)


def _index(weight_map: Any) -> Callable[[Path], Any]:
    return _write("model.safetensors.index.json", json.dumps({"weight_map": weight_map}).encode())


DAMAGE: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no config": (lambda f: (f / "config.json").unlink(), "config.json"),
    "config is not JSON": (_write("config.json", b"{"), "config.json"),
    "config is a list": (_write("config.json", b"[]"), "config.json"),
    "config is not text": (_write("config.json", b"\xff\xfe\x00"), "config.json"),
    "no weights": (lambda f: (f / WEIGHTS).unlink(), "neither"),
    "only pickled weights": (lambda f: (f / WEIGHTS).rename(f / "pytorch_model.bin"), "neither"),
    "weights are empty": (_write(WEIGHTS, b""), WEIGHTS),
    "weights cut in the header": (_truncate(0.001), WEIGHTS),
    "weights cut in the data": (_truncate(0.9), WEIGHTS),
    "weights are noise": (_write(WEIGHTS, bytes(range(256)) * 40), WEIGHTS),
    "header length is huge": (_write(WEIGHTS, b"\xff" * 8 + b"{}"), WEIGHTS),
    "weights are a folder": (lambda f: ((f / WEIGHTS).unlink(), (f / WEIGHTS).mkdir()), WEIGHTS),
    "index without a map": (_index(None), "weight_map"),
    "index with numbers": (_index({"a": 1}), "weight_map"),
    "index is not JSON": (_write("model.safetensors.index.json", b"{"), "index.json"),
    "a shard is missing": (_index({"a": "model-00001-of-00002.safetensors"}), "model-00001-of-00002"),
    "unknown family": (lambda f: _edit_config(f, model_type="rwkv7"), "rwkv7"),
    "a family that is only sized": (lambda f: _edit_config(f, model_type="gemma3", text_config=SHAPE), "cannot run"),
    "gptq": (lambda f: _edit_config(f, quantization_config={"quant_method": "gptq", "bits": 4}), "gptq"),
    "fp8": (lambda f: _edit_config(f, quantization_config={"quant_method": "fp8"}), "fp8"),
    "quantisation as text": (lambda f: _edit_config(f, quantization_config="int4"), "int4"),
    "another activation": (lambda f: _edit_config(f, hidden_act="gelu"), "gelu"),
    "rotary scaling": (lambda f: _edit_config(f, rope_parameters={"rope_type": "ntk", "factor": 4.0}), "ntk"),
    "yarn with a wrong length": (
        lambda f: _edit_config(
            f,
            rope_parameters={
                "rope_type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 64,
                "attention_factor": "long",
            },
        ),
        "attention_factor",
    ),
    "yarn without its numbers": (
        lambda f: _edit_config(f, rope_parameters={"rope_type": "yarn", "factor": 4.0}),
        "original_max_position_embeddings",
    ),
    "more layers than weights": (lambda f: _edit_config(f, num_hidden_layers=4, layer_types=None), "layers.3"),
    "another width": (lambda f: _edit_config(f, hidden_size=32), "not"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_folder_is_one_clear_error(folder: Path, damage: str) -> None:
    edit, named = DAMAGE[damage]
    edit(folder)
    with pytest.raises(KvbenchError, match=named) as caught:
        Model.from_pretrained(folder)
    assert caught.value.exit_code == 2
    assert caught.value.hint
    with pytest.raises(KvbenchError) as unloaded:
        check_folder(folder)
    assert (unloaded.value.message, unloaded.value.hint) == (caught.value.message, caught.value.hint)


def test_a_folder_for_random_weights_needs_no_tensors(folder: Path) -> None:
    check_folder(folder)
    (folder / WEIGHTS).unlink()
    check_folder(folder, has_weights=False)
    _edit_config(folder, hidden_act="gelu")
    with pytest.raises(UsageError, match="gelu"):
        check_folder(folder, has_weights=False)


def test_a_shard_named_outside_the_folder_is_not_opened(folder: Path, tmp_path: Path) -> None:
    shutil.copy(folder / WEIGHTS, tmp_path / "elsewhere.safetensors")
    _index({"a": "../elsewhere.safetensors"})(folder)
    with pytest.raises(UsageError, match="does not exist"):
        Model.from_pretrained(folder)


def test_a_folder_that_does_not_exist_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        Model.from_pretrained(tmp_path / "nowhere")
