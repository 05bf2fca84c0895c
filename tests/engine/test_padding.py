"""Padded decode batches: which sizes there are, what fills them up, and who is refused CUDA graphs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from pydantic import ValidationError

from kvbench.engine.batch import PAD_SLOT, StepBatch
from kvbench.engine.engine import Engine
from kvbench.engine.model import Model
from kvbench.engine.padding import batch_sizes, is_decode, padded, size_for, why_no_graphs
from kvbench.errors import CannotRunError
from kvbench.geometry.model import Experts
from kvbench.geometry.resolve import resolve_model
from kvbench.spec.engine import EngineSettings
from tests.attention.batches import one_layer


def decode_batch(contexts: list[int]) -> StepBatch:
    """Two groups of layers, blocks of 4."""
    count = len(contexts)
    width = -(-max(contexts, default=0) // 4)
    tables = np.arange(1, 2 * count * width + 1, dtype=np.int32).reshape(2, count, width)
    return StepBatch(
        token_ids=np.arange(count, dtype=np.int64) + 7,
        positions=np.array(contexts, np.int64) - 1,
        slots=np.arange(2 * count, dtype=np.int64).reshape(2, count) + 4,
        block_tables=tables,
        query_starts=np.arange(count + 1, dtype=np.int32),
        context_lengths=np.array(contexts, np.int32),
        num_decodes=count,
        logit_rows=np.arange(count, dtype=np.int64),
    )


def test_sizes_are_small_powers_of_two_then_multiples() -> None:
    assert batch_sizes(1) == (1,)
    assert batch_sizes(3) == (1, 2, 3)
    assert batch_sizes(8) == (1, 2, 4, 8)
    assert batch_sizes(30) == (1, 2, 4, 8, 16, 24, 30)
    assert batch_sizes(256)[-3:] == (240, 248, 256)
    assert batch_sizes(300)[-5:] == (248, 256, 272, 288, 300)
    assert batch_sizes(65_536)[-2:] == (496, 512)
    for most in range(1, 600):
        sizes = batch_sizes(most)
        assert list(sizes) == sorted(set(sizes))


def test_the_least_size_that_holds_a_batch_is_taken() -> None:
    sizes = batch_sizes(30)
    for rows in range(1, 31):
        assert size_for(rows, sizes) == min(size for size in sizes if size >= rows)
    assert size_for(0, sizes) is None
    assert size_for(31, sizes) is None


def test_what_fills_a_batch_up_sees_nothing_and_is_written_nowhere() -> None:
    batch = decode_batch([5, 9, 1])
    wide = padded(batch, 8)
    assert wide.num_sequences == wide.num_tokens == wide.num_decodes == 8
    assert is_decode(wide)
    for name in ("token_ids", "positions", "context_lengths"):
        assert np.array_equal(getattr(wide, name)[:3], getattr(batch, name))
        assert getattr(wide, name).dtype == getattr(batch, name).dtype
    assert np.array_equal(wide.slots[:, :3], batch.slots)
    assert (wide.slots[:, 3:] == PAD_SLOT).all()
    assert np.array_equal(wide.block_tables[:, :3], batch.block_tables)
    assert not wide.block_tables[:, 3:].any()
    assert not wide.context_lengths[3:].any()
    same = padded(batch, 3)
    assert np.array_equal(same.slots, batch.slots)


def test_only_a_step_of_decodes_is_padded() -> None:
    batch = decode_batch([5, 9])
    assert is_decode(batch)
    assert not is_decode(replace(batch, num_decodes=1))
    prefill = replace(batch, token_ids=np.zeros(5, np.int64), query_starts=np.array([0, 1, 5], np.int32), num_decodes=1)
    assert not is_decode(prefill)


def test_who_is_refused_and_why() -> None:
    asked = EngineSettings(cuda_graphs=True)
    assert why_no_graphs(EngineSettings(), one_layer(1, 8), "cpu") is None
    assert why_no_graphs(asked, one_layer(1, 8), "cuda") is None
    assert "needs a CUDA device" in (why_no_graphs(asked, one_layer(1, 8), "cpu") or "")
    mixture = replace(one_layer(1, 8), experts=Experts(4, 2, 8))
    assert "mixture of experts" in (why_no_graphs(asked, mixture, "cuda") or "")
    with pytest.raises(ValidationError, match="captures the triton backend"):
        EngineSettings(cuda_graphs=True, attention="torch")


def test_an_engine_on_a_cpu_refuses_graphs() -> None:
    model = Model.random(resolve_model("tiny-llama"))
    with pytest.raises(CannotRunError, match="cuda_graphs needs a CUDA device, and this is cpu"):
        Engine(model, EngineSettings(cuda_graphs=True), kv_memory_bytes=1 << 20, max_context=64)
