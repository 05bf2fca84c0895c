"""A device that keeps, where K and V would lie, numbers that say whose K and V they are."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from kvbench.errors import InternalError
from kvbench.verify.chain import ROOT, UInt64s, candidates_after, group_mark, next_link, token_after

if TYPE_CHECKING:
    from kvbench.cache.transfers import Transfers
    from kvbench.cache.types import Int64s
    from kvbench.engine.batch import StepBatch
    from kvbench.engine.copies import Outcome
    from kvbench.engine.sampling import SamplingParams
    from kvbench.engine.schedule import Candidates
    from kvbench.verify.places import Places


@dataclass
class OracleDevice:
    """`Runner` over memory that `places` keeps; its device blocks are shared by all layer groups."""

    places: Places
    num_groups: int
    vocab_size: int
    steps: int = 0
    marks: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.block_size = self.places.block_size
        self.num_blocks = self.places.sizes["device"] - 1
        self.links, self.tokens = self.places.planes["device"].links, self.places.planes["device"].tokens
        self.marks = [group_mark(group) for group in range(self.num_groups)]

    def start(self, transfers: Transfers) -> Outcome:
        return self.places.start(transfers)

    def poll(self, *, wait: bool = False) -> Outcome:
        return self.places.poll(wait=wait)

    def forward(self, batch: StepBatch) -> list[int]:
        """Write the step's positions, each from what is read back of the one before it; the wanted rows' numbers."""
        self.steps += 1
        self._check_shape(batch)
        wanted = set(batch.logit_rows.tolist())
        answers = {}
        for sequence in range(batch.num_sequences):
            start, end = int(batch.query_starts[sequence]), int(batch.query_starts[sequence + 1])
            link = self._link_before(batch, sequence, int(batch.positions[start]))
            for row in range(start, end):
                token = int(batch.token_ids[row])
                link = next_link(link, token)
                for group, mark in enumerate(self.marks):
                    self.links.reshape(-1)[batch.slots[group, row]] = link ^ mark
                    self.tokens.reshape(-1)[batch.slots[group, row]] = token
                if row in wanted:
                    answers[row] = link
        return [answers[row] for row in batch.logit_rows.tolist()]

    def sample(self, logits: list[int], params: list[SamplingParams], keys: Int64s) -> Int64s:
        """The token that follows from each number, and from its random number where it is drawn."""
        if not len(logits) == len(params) == len(keys):
            raise InternalError(f"{len(logits)} rows are sampled for {len(params)} sequences")
        drawn = zip(logits, params, keys.tolist(), strict=True)
        chosen = [token_after(link, self.vocab_size, None if one.is_greedy else key) for link, one, key in drawn]
        return np.array(chosen, np.int64)

    def candidates(self, logits: list[int], rows: Int64s, count: int) -> Candidates:
        """The likeliest tokens of each row, for beam search."""
        found = [candidates_after(logits[row], self.vocab_size, count) for row in rows.tolist()]
        return np.array([ids for ids, _ in found], np.int64), np.array([scores for _, scores in found])

    def reset(self) -> None:
        self.places.wipe()

    def stored(self, table: Int64s, group: int, first: int, end: int) -> tuple[UInt64s, Int64s]:
        """Numbers and tokens of positions [first, end) as a block table leads to them."""
        blocks = table[first // self.block_size : -(-end // self.block_size)]
        skip = first % self.block_size
        links = self.links[blocks].reshape(-1)[skip : skip + end - first] ^ np.uint64(self.marks[group])
        return links, self.tokens[blocks].reshape(-1)[skip : skip + end - first]

    def _link_before(self, batch: StepBatch, sequence: int, position: int) -> int:
        """Read through every group's table; where they disagree the answer will be wrong."""
        link = ROOT
        for group in range(self.num_groups):
            if position:
                table = batch.block_tables[group, sequence].astype(np.int64)
                link = int(self.stored(table, group, position - 1, position)[0][0])
        return link

    def _check_shape(self, batch: StepBatch) -> None:
        if batch.query_starts[0] != 0 or batch.query_starts[-1] != batch.num_tokens:
            raise InternalError("the batch's queries do not cover its tokens")
        for group in range(self.num_groups):
            slots = batch.slots[group]
            if len(np.unique(slots)) != batch.num_tokens:
                raise InternalError(f"two tokens of one step have one slot in group {group}")
            if slots.min(initial=self.block_size) < self.block_size:
                raise InternalError("a token is written into the null block")
