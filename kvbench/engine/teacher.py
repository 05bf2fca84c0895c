"""Texts whose every token is given, read through a model chunk by chunk over a paged KV store (teacher forcing).

K and V of a chunk are stored before attention reads them, so that every token sees its past, and itself, in the stored
form, whatever the chunk. A chunk of one token takes the decode kernel, a longer one the prefill's path.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvbench.engine.batch import StepBatch

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from kvbench.cache.types import Int64s
    from kvbench.engine.attention.registry import AttentionBackend
    from kvbench.engine.kvstore.store import KVStore
    from kvbench.engine.model import Model

_ORDER_SEED = 0


def blocks_for(pieces: int, texts: int, tokens: int, block_size: int) -> int:
    """Blocks that `texts` texts of `tokens` tokens take, every piece of the pool with blocks of its own."""
    return pieces * texts * -(-tokens // block_size)


class TeacherForced:
    """Texts side by side in a store of their own, which has `blocks_for` them. Their blocks lie scattered in the pool,
    as those of a server that has run for a while do."""

    def __init__(self, model: Model, store: KVStore, attention: AttentionBackend, texts: int, tokens: int) -> None:
        self._model, self._store, self._attention = model, store, attention
        shape = len(store.pieces), texts, -(-tokens // store.block_size)
        scattered = np.random.default_rng(_ORDER_SEED).permutation(int(np.prod(shape)))
        self._tables = (scattered + 1).astype(np.int32).reshape(shape)  # block 0 is the null block

    def forward(self, tokens: NDArray[np.int64], start: int) -> Tensor:
        """Logits `[texts · n, vocab]` float32 after each of the tokens `[texts, n]`, which stand at positions
        `start` … `start + n − 1`; what is before them was given to earlier calls. Fewer texts than there is room for
        are the first ones."""
        return self._model.forward(self._batch(tokens, start), self._store, self._attention)

    def _batch(self, tokens: NDArray[np.int64], start: int) -> StepBatch:
        texts, count = tokens.shape
        size, end = self._store.block_size, start + count
        positions = np.arange(start, end, dtype=np.int64)
        tables = self._tables[:, :texts]
        slots: Int64s = tables[:, :, positions // size].astype(np.int64) * size + positions % size
        return StepBatch(
            token_ids=np.ascontiguousarray(tokens, dtype=np.int64).reshape(-1),
            positions=np.tile(positions, texts),
            slots=slots.reshape(len(slots), -1),
            block_tables=np.ascontiguousarray(tables[:, :, : -(-end // size)]),
            query_starts=np.arange(texts + 1, dtype=np.int32) * count,
            context_lengths=np.full(texts, end, np.int32),
            num_decodes=texts if count == 1 else 0,
            logit_rows=np.arange(texts * count, dtype=np.int64),
        )
