"""Logits against Hugging Face `transformers`, on checkpoints it wrote itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from kvbench.engine.attention.registry import attention_backend
from kvbench.engine.kvstore.store import KVStore
from kvbench.engine.model import Model
from tests.checkpoints import FAMILIES, MARGIN, margin, prompts_of, reference_logits, write_checkpoint
from tests.model.plain import PlainAttention, PlainStore, Tables

LENGTHS = [37, 1, 66, 19]
TOLERANCE = 1e-4
ALL = (*FAMILIES, "llama-linear")


@pytest.fixture(scope="module", params=ALL)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(request.param, tmp_path_factory.mktemp(request.param), seed=1)


@pytest.fixture(scope="module")
def expected(folder: Path) -> list[torch.Tensor]:
    logits = [reference_logits(folder, prompt) for prompt in prompts_of(LENGTHS)]
    assert min(margin(rows) for rows in logits) > MARGIN
    return logits


def _plain(model: Model, block_size: int, num_blocks: int) -> tuple[Any, Any]:
    return PlainStore((num_blocks + 1) * block_size), PlainAttention(block_size)


def _paged(model: Model, backend: str, block_size: int, num_blocks: int) -> tuple[Any, Any]:
    return KVStore(model.geometry, "fp32", block_size, num_blocks), attention_backend(backend, "cpu")


def assert_logits_agree(found: torch.Tensor, expected: torch.Tensor) -> None:
    assert found.dtype == torch.float32
    assert (found - expected).abs().max() < TOLERANCE
    assert found.argmax(-1).tolist() == expected.argmax(-1).tolist()


def run_whole(model: Model, store: Any, attention: Any, tables: Tables, prompts: list[list[int]]) -> torch.Tensor:
    """All prompts in one step, the logits of every token."""
    order = sorted(range(len(prompts)), key=lambda s: (len(prompts[s]) > 1, s))
    batch = tables.step(dict(enumerate(prompts)), {s: range(len(p)) for s, p in enumerate(prompts)})
    parts = model.forward(batch, store, attention).split([len(prompts[s]) for s in order])
    return torch.cat([parts[order.index(s)] for s in range(len(prompts))])


def run_pieces(
    model: Model, store: Any, attention: Any, tables: Tables, prompts: list[list[int]], chunk: int
) -> torch.Tensor:
    """First half of each prompt in chunks, the rest token by token, sequences side by side."""
    found: dict[int, list[torch.Tensor]] = {s: [] for s in range(len(prompts))}
    done = [0] * len(prompts)
    while any(done[s] < len(p) for s, p in enumerate(prompts)):
        pieces = {}
        for s, prompt in enumerate(prompts):
            size = chunk if done[s] < len(prompt) // 2 else 1
            if done[s] < len(prompt):
                pieces[s] = prompt[done[s] : done[s] + size]
        batch = tables.step(pieces, {s: range(len(piece)) for s, piece in pieces.items()})
        order = sorted(pieces, key=lambda s: (len(pieces[s]) > 1, s))
        logits = model.forward(batch, store, attention).split([len(pieces[s]) for s in order])
        for s, rows in zip(order, logits, strict=True):
            found[s].append(rows)
            done[s] += len(pieces[s])
    return torch.cat([torch.cat(rows) for rows in found.values()])


def test_whole_prompts_agree(folder: Path, expected: list[torch.Tensor]) -> None:
    model, tables = Model.from_pretrained(folder), Tables(len(LENGTHS), 4, max(LENGTHS))
    found = run_whole(model, *_plain(model, 4, tables.num_blocks), tables, prompts_of(LENGTHS))
    assert_logits_agree(found, torch.cat(expected))


@pytest.mark.parametrize("chunk", [1, 7])
def test_chunks_and_single_tokens_agree(folder: Path, expected: list[torch.Tensor], chunk: int) -> None:
    model, tables = Model.from_pretrained(folder), Tables(len(LENGTHS), 4, max(LENGTHS))
    found = run_pieces(model, *_plain(model, 4, tables.num_blocks), tables, prompts_of(LENGTHS), chunk)
    assert_logits_agree(found, torch.cat(expected))


@pytest.mark.parametrize("block_size", [1, 4, 16, 64])
@pytest.mark.parametrize("backend", ["torch", "numba"])
def test_the_paged_store_agrees_whole_and_in_pieces(
    folder: Path, expected: list[torch.Tensor], backend: str, block_size: int
) -> None:
    model, prompts = Model.from_pretrained(folder), prompts_of(LENGTHS)
    for run, options in ((run_whole, {}), (run_pieces, {"chunk": 7})):
        tables = Tables(len(LENGTHS), block_size, max(LENGTHS))
        found = run(model, *_paged(model, backend, block_size, tables.num_blocks), tables, prompts, **options)
        assert_logits_agree(found, torch.cat(expected))


def test_only_wanted_rows_have_logits_and_all_tokens_are_stored(folder: Path, expected: list[torch.Tensor]) -> None:
    """A first chunk without any wanted logits, then the rest with the last row's only."""
    model, tables = Model.from_pretrained(folder), Tables(len(LENGTHS), 4, max(LENGTHS))
    store, attention = _plain(model, 4, tables.num_blocks)
    prompt = prompts_of(LENGTHS)[0]
    none = model.forward(tables.step({0: prompt[:20]}, {0: []}), store, attention)
    assert none.shape == (0, model.geometry.vocab_size)
    last = model.forward(tables.step({0: prompt[20:]}), store, attention)
    assert_logits_agree(last, expected[0][-1:])


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_half_precision_weights_stay_near(folder: Path, expected: list[torch.Tensor], dtype: str) -> None:
    """The spread of logits is about 2.5; half-precision rounding through three layers must stay far below it."""
    model, tables = Model.from_pretrained(folder, dtype=dtype), Tables(len(LENGTHS), 4, max(LENGTHS))
    found = run_whole(model, *_plain(model, 4, tables.num_blocks), tables, prompts_of(LENGTHS))
    assert found.dtype == torch.float32
    assert (found - torch.cat(expected)).square().mean().sqrt() < {"bf16": 0.1, "fp16": 0.02}[dtype]
