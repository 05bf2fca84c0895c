"""Drafts by a smaller model with KV of its own.

Its K and V lie in tensors of their own under the same block ids and slots as the model's: whoever owns a block owns the
draft's part of it. So a prefix hit, a fork, a copy on write, a preemption and a rollback hold for the draft without any
books of its own, and its bytes count as part of every block. The draft computes what the model computes: prompts in the
same pieces, and the last draft of a step as well, so that every computed slot has the KV of both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvbench.cache.transfers import Transfers
from kvbench.engine.batch import StepBatch
from kvbench.engine.runner import DeviceRunner
from kvbench.engine.speculation.first_layers import ModelDrafter
from kvbench.errors import CannotRunError

if TYPE_CHECKING:
    from torch import Tensor

    from kvbench.engine.attention.registry import AttentionBackend
    from kvbench.engine.copies import Outcome
    from kvbench.engine.kvstore.store import KVStore
    from kvbench.engine.model import Model
    from kvbench.engine.reblocking import BlockSizes


class DraftModel(ModelDrafter):
    """The draft with its store, which has the blocks of the model's."""

    completes_kv = True

    def __init__(self, model: Model, store: KVStore, attention: AttentionBackend) -> None:
        self.model, self.store, self.attention = model, store, attention

    def forward(self, batch: StepBatch) -> Tensor:
        return self.model.forward(batch, self.store, self.attention)


class DraftedRunner(DeviceRunner):
    """The model's runner, with the draft following: block copies and prompts."""

    def __init__(self, runner: DeviceRunner, draft: DraftModel) -> None:
        super().__init__(runner.model, runner.store, runner.attention, runner.graphs)
        self.draft = draft

    def start(self, transfers: Transfers) -> Outcome:
        if transfers.copy_source:
            copies = Transfers(copy_source=transfers.copy_source, copy_destination=transfers.copy_destination)
            self.draft.store.start(copies)
        return super().start(transfers)

    def forward(self, batch: StepBatch) -> Tensor:
        if batch.num_sequences > batch.num_decodes:
            self.draft.forward(_prompts_of(batch))
        return super().forward(batch)

    def sizes_at(self, block_size: int) -> BlockSizes:
        raise CannotRunError(
            "the KV of a draft model cannot be brought to another block size", hint="re-block without a draft model"
        )


def _prompts_of(batch: StepBatch) -> StepBatch:
    """The prefill pieces alone, nobody's logits wanted."""
    n = batch.num_decodes
    return StepBatch(
        token_ids=batch.token_ids[n:],
        positions=batch.positions[n:],
        slots=batch.slots[:, n:],
        block_tables=batch.block_tables[:, n:],
        query_starts=batch.query_starts[n:] - np.int32(n),
        context_lengths=batch.context_lengths[n:],
        num_decodes=0,
        logit_rows=np.empty(0, np.int64),
    )
