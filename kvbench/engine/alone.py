"""One prompt through a model, alone in a store of its own: for calibration, and for the numeric error of a KV dtype."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kvbench.engine.attention.registry import attention_backend
from kvbench.engine.batch import StepBatch
from kvbench.engine.kvstore.store import KVStore
from kvbench.geometry.memory import pool_layout
from kvbench.workload.request import Segment
from kvbench.workload.tokens import foreign_stream, token_ids

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from kvbench.cache.types import Int64s
    from kvbench.engine.model import Model


def foreign_prompt(model: Model, tokens: int) -> Int64s:
    """Token ids that no workload uses, no more of them than the model can take."""
    count = min(tokens, model.geometry.max_context)
    return token_ids((Segment(foreign_stream(), 0, count),), 0, model.geometry.vocab_size).astype(np.int64)


def prefill_alone(
    model: Model,
    prompt: Int64s,
    kv_dtype: str,
    block_size: int = 16,
    *,
    make: Callable[..., KVStore] = KVStore,
    **more: Any,
) -> Tensor:
    """Logits `[tokens, vocab]` float32 at every position of a prompt `[tokens]`, prefilled at once by the torch backend
    over a store that `make` makes (with `more`)."""
    count, device = len(prompt), str(model.device)
    blocks = -(-count // block_size)
    pieces = len(pool_layout(model.geometry, kv_dtype, block_size).pieces)
    store = make(model.geometry, kv_dtype, block_size, pieces * blocks, device=device, **more)
    tables = np.arange(1, pieces * blocks + 1, dtype=np.int32).reshape(pieces, 1, blocks)  # block 0 is the null block
    positions = np.arange(count, dtype=np.int64)
    batch = StepBatch(
        token_ids=prompt,
        positions=positions,
        slots=tables[:, 0, positions // block_size].astype(np.int64) * block_size + positions % block_size,
        block_tables=tables,
        query_starts=np.array([0, count], dtype=np.int32),
        context_lengths=np.array([count], dtype=np.int32),
        num_decodes=0,
        logit_rows=positions,
    )
    return model.forward(batch, store, attention_backend("torch", device))
