from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from kvbench.engine.attention.registry import attention_backend
from kvbench.engine.kvstore.store import KVStore
from kvbench.engine.model import Model
from kvbench.engine.random_weights import RandomSource
from kvbench.engine.tensor_shapes import tensor_shapes
from kvbench.errors import CannotRunError, UsageError
from kvbench.geometry.memory import pool_layout
from kvbench.geometry.model import ModelGeometry
from kvbench.geometry.presets import preset, preset_names
from tests.model.plain import Tables

TINY = tuple(name for name in preset_names() if name.startswith("tiny-"))
DIGEST = """
import hashlib, sys, torch
from kvbench.engine.random_weights import RandomSource
torch.set_num_threads(int(sys.argv[1]))
source = RandomSource(7, torch.device("cpu"), torch.float32)
names = ("model.embed_tokens.weight", "lm_head.weight")
names = names if sys.argv[2] == "forwards" else names[::-1]
drawn = {name: hashlib.sha256(source(name, (1000, 301)).numpy().tobytes()).hexdigest() for name in names}
print(sorted(drawn.items()))
"""


def _digest(threads: str, order: str, hash_seed: str) -> str:
    env = {**os.environ, "PYTHONHASHSEED": hash_seed}
    return subprocess.run(
        [sys.executable, "-c", DIGEST, threads, order], env=env, check=True, capture_output=True, text=True
    ).stdout


def test_weights_do_not_depend_on_process_threads_or_order() -> None:
    assert _digest("1", "forwards", "1") == _digest("2", "backwards", "2")


def test_seeds_and_names_give_different_weights() -> None:
    def draw(seed: int, name: str) -> torch.Tensor:
        return RandomSource(seed, torch.device("cpu"), torch.float32)(name, (50,))

    assert not torch.equal(draw(0, "a"), draw(1, "a"))
    assert not torch.equal(draw(0, "a"), draw(0, "b"))
    assert torch.equal(draw(3, "a"), draw(3, "a"))


def _greedy(geometry: ModelGeometry, prompt: list[int], steps: int) -> tuple[list[int], torch.Tensor]:
    model = Model.random(geometry)
    windows = [piece.group.window for piece in pool_layout(geometry, "fp32", 16).pieces]
    tables = Tables(1, 16, len(prompt) + steps, windows=windows)
    store, attention = KVStore(geometry, "fp32", 16, tables.num_blocks), attention_backend("torch", "cpu")
    logits = model.forward(tables.step({0: prompt}), store, attention)
    tokens = []
    for _ in range(steps):
        tokens.append(int(logits.argmax()))
        logits = model.forward(tables.step({0: [tokens[-1]]}), store, attention)
    return tokens, logits


@pytest.mark.parametrize("name", TINY)
def test_activations_stay_sane_and_greedy_output_varies(name: str) -> None:
    tokens, logits = _greedy(preset(name), list(range(5, 25)), 40)
    assert 0.5 < float(logits.std()) < 2.0
    assert len(set(tokens)) > 20


def test_tied_embeddings_do_not_make_a_model_repeat_its_input() -> None:
    tokens, _ = _greedy(replace(preset("tiny-llama"), tie_word_embeddings=True), [3, 1, 4, 1, 5], 40)
    assert len(set(tokens)) > 20


@pytest.mark.parametrize("name", TINY)
def test_named_tensors_add_up_to_the_parameter_count(name: str) -> None:
    geometry = preset(name)
    shapes = tensor_shapes(geometry).values()
    assert sum(torch.Size(shape).numel() for shape in shapes) == geometry.parameters


@pytest.mark.parametrize(
    ("change", "named"), [({"family": "gemma3"}, "cannot run"), ({"hidden_act": "relu"}, "hidden_act 'relu'")]
)
def test_what_the_engine_does_not_run_is_refused(change: dict[str, str], named: str) -> None:
    with pytest.raises(UsageError, match=named):
        Model.random(replace(preset("tiny-gemma3"), **change))


@pytest.mark.parametrize(
    "setting", [{"dtype": "fp8"}, {"dtype": "int8"}, {"device": "tpu"}, {"device": "cuda:x"}], ids=str
)
def test_unknown_dtypes_and_devices_are_refused(setting: dict[str, str]) -> None:
    with pytest.raises(UsageError, match=next(iter(setting.values()))):
        Model.random(preset("tiny-llama"), **setting)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_cuda_without_a_device_is_a_clear_refusal() -> None:
    with pytest.raises(CannotRunError, match="no CUDA device"):
        Model.random(preset("tiny-llama"), device="cuda")


def test_a_model_beyond_the_machine_s_memory_is_refused_before_anything_is_allocated() -> None:
    huge = replace(preset("llama-3.1-70b"), vocab_size=1 << 40)
    with pytest.raises(CannotRunError, match="the weights take"):
        Model.random(huge)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_weights_on_cuda_are_bf16_by_default_and_on_the_device() -> None:
    model = Model.random(preset("tiny-llama"), device="cuda")
    assert (model.dtype, model.device.type) == (torch.bfloat16, "cuda")
