"""Drafts by the model's own first layers, final norm and head.

The first layers see what they see in the whole model, so the K and V that they write are those that the verification
will write again: the draft keeps its KV in the model's own blocks, and a rollback needs nothing more.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import numpy as np

from kvbench.engine.prepare import decode_batch
from kvbench.engine.sampling import likeliest_tokens
from kvbench.engine.speculation.drafts import Drafts

if TYPE_CHECKING:
    from torch import Tensor

    from kvbench.cache.types import CacheManager, Int32s
    from kvbench.engine.attention.registry import AttentionBackend
    from kvbench.engine.batch import StepBatch
    from kvbench.engine.decodes import DecodeSet
    from kvbench.engine.kvstore.store import KVStore
    from kvbench.engine.model import Model
    from kvbench.engine.schedule import Schedule


class ModelDrafter(ABC):
    """One forward pass per draft over all sequences that still want one; drafts are the likeliest tokens."""

    completes_kv = False
    """Whether the last draft of a sequence must be computed too, so that its KV is there for the next step"""

    def propose(self, decoding: DecodeSet, most: Int32s) -> Drafts:
        return Drafts(most)

    def draft(self, step: Schedule, manager: CacheManager) -> None:
        drafts = step.drafts
        if drafts is None:
            return
        n = step.num_decodes
        rows, starts, tokens = step.rows[:n], step.starts[:n], step.decode_tokens.copy()
        for turn in range(int(drafts.counts.max(initial=0)) + self.completes_kv):
            wanted = drafts.counts > turn
            active = np.flatnonzero(drafts.counts >= turn if self.completes_kv else wanted)
            batch = decode_batch(manager, rows[active], starts[active] + np.int32(turn), tokens[active], wanted[active])
            logits = self.forward(batch)
            if wanted.any():
                tokens[wanted] = likeliest_tokens(logits)
                drafts.tokens[drafts.firsts[wanted] + turn] = tokens[wanted]

    @abstractmethod
    def forward(self, batch: StepBatch) -> Tensor:
        """Logits of the rows that are sampled from; K and V of all are stored."""


class FirstLayers(ModelDrafter):
    """`layers` of the model, over its own store."""

    def __init__(self, model: Model, store: KVStore, attention: AttentionBackend, layers: int) -> None:
        self.model, self.store, self.attention, self.layers = model, store, attention, layers

    def forward(self, batch: StepBatch) -> Tensor:
        return self.model.forward(batch, self.store, self.attention, layers=self.layers)
