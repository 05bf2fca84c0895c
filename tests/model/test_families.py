"""Windows, hybrids, sinks, experts and latent attention: logits against `transformers`, on checkpoints it wrote itself.

Every family runs over the paged store with one block table per piece, null before the window, in a pool of NaN.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from kvbench.engine.attention.registry import attention_backend
from kvbench.engine.kvstore.store import KVStore
from kvbench.engine.model import Model, check_folder
from kvbench.engine.tensor_shapes import tensor_shapes
from tests.attention.batches import poison
from tests.checkpoints import LATENT, MARGIN, WINDOWED, margin, prompts_of, reference_logits, write_checkpoint
from tests.model.plain import Tables
from tests.model.test_parity import assert_logits_agree, run_pieces, run_whole

LENGTHS = [70, 1, 96, 29]
"""Beyond the window of 24 and the trained context of 64."""


@pytest.fixture(scope="module", params=(*WINDOWED, *LATENT))
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    seed = 1 if request.param != "mistral" else 2
    return write_checkpoint(request.param, tmp_path_factory.mktemp(request.param), seed=seed)


@pytest.fixture(scope="module")
def expected(folder: Path) -> torch.Tensor:
    logits = [reference_logits(folder, prompt) for prompt in prompts_of(LENGTHS)]
    assert min(margin(rows) for rows in logits) > MARGIN
    return torch.cat(logits)


@pytest.fixture(scope="module")
def model(folder: Path) -> Model:
    return Model.from_pretrained(folder)


def poisoned(model: Model, block_size: int, kv_dtype: str = "fp32") -> tuple[KVStore, Tables]:
    probe = KVStore(model.geometry, kv_dtype, block_size, 1)
    windows = [piece.group.window for piece in probe.pieces]
    tables = Tables(len(LENGTHS), block_size, max(LENGTHS), windows=windows)
    store = KVStore(model.geometry, kv_dtype, block_size, tables.num_blocks)
    poison(store)
    return store, tables


@pytest.mark.parametrize("block_size", [1, 4, 16, 64])
@pytest.mark.parametrize("backend", ["torch", "numba"])
def test_logits_agree_whole_and_in_pieces(model: Model, expected: torch.Tensor, backend: str, block_size: int) -> None:
    prompts, attention = prompts_of(LENGTHS), attention_backend(backend, "cpu")
    store, tables = poisoned(model, block_size)
    assert_logits_agree(run_whole(model, store, attention, tables, prompts), expected)
    store, tables = poisoned(model, block_size)
    assert_logits_agree(run_pieces(model, store, attention, tables, prompts, chunk=11), expected)


def test_token_by_token_agrees(model: Model, expected: torch.Tensor) -> None:
    store, tables = poisoned(model, 8)
    found = run_pieces(model, store, attention_backend("numba", "cpu"), tables, prompts_of(LENGTHS), chunk=1)
    assert_logits_agree(found, expected)


def test_only_wanted_rows_have_logits_and_all_tokens_are_stored(model: Model, expected: torch.Tensor) -> None:
    store, tables = poisoned(model, 4)
    prompt, attention = prompts_of(LENGTHS)[0], attention_backend("numba", "cpu")
    assert len(model.forward(tables.step({0: prompt[:40]}, {0: []}), store, attention)) == 0
    last = model.forward(tables.step({0: prompt[40:]}), store, attention)
    assert_logits_agree(last, expected[69:70])


def test_names_shapes_and_counts_are_those_of_the_checkpoint(folder: Path, model: Model) -> None:
    check_folder(folder)
    shapes = tensor_shapes(model.geometry).values()
    assert sum(torch.Size(shape).numel() for shape in shapes) == model.geometry.parameters


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_half_precision_weights_stay_near(folder: Path, expected: torch.Tensor, dtype: str) -> None:
    """Most rows stay near; where a router is near a tie, another expert is as good an answer."""
    half = Model.from_pretrained(folder, dtype=dtype)
    store, tables = poisoned(half, 16)
    found = run_whole(half, store, attention_backend("numba", "cpu"), tables, prompts_of(LENGTHS))
    assert found.dtype == torch.float32
    error = (found - expected).square().mean(-1).sqrt().median() / expected.std()
    assert error < {"bf16": 0.1, "fp16": 0.02}[dtype]


@pytest.mark.parametrize("kv_dtype", ["fp16", "int8"])
def test_narrow_kv_stays_near(model: Model, expected: torch.Tensor, kv_dtype: str) -> None:
    store, tables = poisoned(model, 16, kv_dtype)
    found = run_whole(model, store, attention_backend("numba", "cpu"), tables, prompts_of(LENGTHS))
    error = (found - expected).square().mean(-1).sqrt().median() / expected.std()
    assert error < {"fp16": 0.01, "int8": 0.15}[kv_dtype]
