"""A contiguous KV store and textbook attention with the interface of the real ones, and batches without a scheduler."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from kvbench.engine.attention.rule import PLAIN, ScoreRule
from kvbench.engine.batch import StepBatch


class PlainStore:
    """K and V of every slot in a dict of flat float32 tensors."""

    def __init__(self, num_slots: int = 4096) -> None:
        self.num_slots = num_slots
        self.group_of_layer = defaultdict(int)
        self.kept: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def write(self, layer: int, k: torch.Tensor, v: torch.Tensor, slots: torch.Tensor) -> None:
        if layer not in self.kept:
            self.kept[layer] = tuple(torch.full((self.num_slots, *x.shape[1:]), float("nan")) for x in (k, v))
        for kept, new in zip(self.kept[layer], (k, v), strict=True):
            kept[slots] = new.float()


class PlainAttention:
    """softmax(q kᵀ / √d) v, one query at a time."""

    name = "plain"

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size

    def prepare(self, batch: StepBatch, store: PlainStore) -> None:
        self.batch = batch

    def attend(self, layer: int, q: torch.Tensor, store: PlainStore, rule: ScoreRule = PLAIN) -> torch.Tensor:
        k_all, v_all = store.kept[layer]
        out = torch.empty(*q.shape[:2], v_all.shape[-1])
        for s in range(self.batch.num_sequences):
            table = torch.from_numpy(self.batch.block_tables[0, s]).long()
            slots = (table[:, None] * self.block_size + torch.arange(self.block_size)).flatten()
            first, last = (int(x) for x in self.batch.query_starts[s : s + 2])
            for row in range(first, last):
                seen = slots[: int(self.batch.positions[row]) + 1]
                group = q.shape[1] // k_all.shape[1]
                k, v = (x[seen].repeat_interleave(group, dim=1) for x in (k_all, v_all))
                scores = torch.einsum("hd,thd->ht", q[row].float(), k) * rule.scale_for(q.shape[-1])
                weights = torch.softmax(scores, dim=-1)
                out[row] = torch.einsum("ht,thd->hd", weights, v)
        return out.to(q.dtype)


class Tables:
    """Hands out blocks to sequences in a scattered order and makes step batches.

    `windows` has an entry per group of the store, None for full attention. Blocks of a window group that lie wholly
    before what the next query sees are null in its table, as the cache manager leaves them.
    """

    def __init__(
        self,
        num_sequences: int,
        block_size: int,
        max_tokens: int,
        seed: int = 0,
        windows: Sequence[int | None] = (None,),
    ) -> None:
        width = -(-max_tokens // block_size)
        count = len(windows) * num_sequences * width
        blocks = np.random.default_rng(seed).permutation(count) + 1
        self.block_size, self.num_blocks, self.windows = block_size, count, windows
        self.tables = blocks.reshape(len(windows), num_sequences, width).astype(np.int32)
        self.lengths = np.zeros(num_sequences, np.int32)

    def step(self, pieces: dict[int, list[int]], wanted: dict[int, Any] | None = None) -> StepBatch:
        """The next tokens of some sequences, decodes first. `wanted[s]` are the piece's rows whose logits are wanted;
        the last one unless given."""
        pieces = dict(sorted(pieces.items(), key=lambda item: (len(item[1]) > 1, item[0])))
        rows = np.array(list(pieces))
        counts = np.array([len(tokens) for tokens in pieces.values()])
        starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
        positions = np.concatenate([self.lengths[s] + np.arange(len(t)) for s, t in pieces.items()]).astype(np.int64)
        owner = np.repeat(rows, counts)
        slots = self.tables[:, owner, positions // self.block_size].astype(np.int64) * self.block_size
        tables = self._seen(rows)
        self.lengths[rows] += counts.astype(np.int32)
        chosen = {s: [len(t) - 1] for s, t in pieces.items()} | (wanted or {})
        logit_rows = [int(starts[i]) + int(r) for i, s in enumerate(pieces) for r in chosen[s]]
        return StepBatch(
            token_ids=np.concatenate(list(pieces.values())).astype(np.int64),
            positions=positions,
            slots=slots + positions % self.block_size,
            block_tables=tables,
            query_starts=starts,
            context_lengths=self.lengths[rows].copy(),
            num_decodes=int((counts == 1).sum()),
            logit_rows=np.array(logit_rows, np.int64),
        )

    def _seen(self, rows: np.ndarray) -> np.ndarray:
        tables = self.tables[:, rows].copy()
        for group, window in enumerate(self.windows):
            for table, computed in zip(tables[group], self.lengths[rows], strict=True):
                if window is not None:
                    table[: max(0, int(computed) - window + 1) // self.block_size] = 0
        return tables
