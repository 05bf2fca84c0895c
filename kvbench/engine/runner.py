"""The device's side of a step: move blocks, run the transformer, choose tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvbench.engine.sampling import likeliest, sample

if TYPE_CHECKING:
    from torch import Tensor

    from kvbench.cache.reblock import ReblockPlan
    from kvbench.cache.transfers import Transfers
    from kvbench.cache.types import Int64s
    from kvbench.engine.attention.registry import AttentionBackend
    from kvbench.engine.batch import StepBatch
    from kvbench.engine.copies import Outcome
    from kvbench.engine.graphs import GraphedDecode
    from kvbench.engine.kvstore.store import KVStore
    from kvbench.engine.model import Model
    from kvbench.engine.reblocking import BlockSizes, Reblocked
    from kvbench.engine.sampling import SamplingParams
    from kvbench.engine.schedule import Candidates


class DeviceRunner:
    """A model with its KV store and attention backend; `graphs` computes the decode steps that it takes."""

    def __init__(
        self, model: Model, store: KVStore, attention: AttentionBackend, graphs: GraphedDecode | None = None
    ) -> None:
        self.model = model
        self.store = store
        self.attention = attention
        self.graphs = graphs

    def start(self, transfers: Transfers) -> Outcome:
        return self.store.start(transfers)

    def poll(self, *, wait: bool = False) -> Outcome:
        return self.store.poll(wait=wait)

    def forward(self, batch: StepBatch) -> Tensor:
        if self.graphs is not None and self.graphs.takes(batch):
            return self.graphs.forward(batch)
        return self.model.forward(batch, self.store, self.attention)

    def sample(self, logits: Tensor, params: list[SamplingParams], keys: Int64s) -> Int64s:
        return sample(logits, params, keys)

    def candidates(self, logits: Tensor, rows: Int64s, count: int) -> Candidates:
        return likeliest(logits, rows, count)

    def sizes_at(self, block_size: int) -> BlockSizes:
        return self.store.sizes_at(block_size)

    def reblock(self, plan: ReblockPlan) -> Reblocked:
        if self.graphs is not None:
            self.graphs.clear()
        return self.store.reblock(plan)

    def reset(self) -> None:
        self.store.reset()
