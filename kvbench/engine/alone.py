"""One prompt through a model, alone in a store of its own: for calibration, and for the numeric error of a KV dtype."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kvbench.engine.attention.registry import attention_backend
from kvbench.engine.kvstore.store import KVStore
from kvbench.engine.teacher import TeacherForced, blocks_for
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
    blocks = blocks_for(len(pool_layout(model.geometry, kv_dtype, block_size).pieces), 1, count, block_size)
    store = make(model.geometry, kv_dtype, block_size, blocks, device=device, **more)
    teacher = TeacherForced(model, store, attention_backend("torch", device), 1, count)
    return teacher.forward(prompt[np.newaxis], 0)
