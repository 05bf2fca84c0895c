"""A device that keeps, where K and V would lie, numbers that say whose K and V they are.

Two planes per slot: the chain number of the position (chain.py) and its token, so that a copy that forgets a part of
a block shows, as one that forgets the scales of quantised KV would.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from kvbench.engine.copies import Outcome
from kvbench.errors import InternalError
from kvbench.verify.chain import ROOT, UInt64s, candidates_after, group_mark, next_link, token_after

if TYPE_CHECKING:
    from kvbench.cache.transfers import Transfers
    from kvbench.cache.types import Int64s
    from kvbench.engine.batch import StepBatch
    from kvbench.engine.sampling import SamplingParams
    from kvbench.engine.schedule import Candidates

POISON = 0xDEAD
"""What no position's number is: memory that was never written."""


@dataclass
class OracleDevice:
    """`Runner` over `num_blocks` blocks shared by all layer groups, and a host tier."""

    num_blocks: int
    block_size: int
    num_groups: int
    host_blocks: int
    vocab_size: int
    steps: int = 0
    marks: list[int] = field(init=False)

    def __post_init__(self) -> None:
        shape, host = (self.num_blocks + 1, self.block_size), (max(1, self.host_blocks), self.block_size)
        self.links = np.full(shape, POISON, np.uint64)
        self.tokens = np.full(shape, -1, np.int64)
        self.host_links = np.full(host, POISON, np.uint64)
        self.host_tokens = np.full(host, -1, np.int64)
        self.marks = [group_mark(group) for group in range(self.num_groups)]

    def start(self, transfers: Transfers) -> Outcome:
        """All copies at once, in their order."""
        for here, there in ((self.links, self.host_links), (self.tokens, self.host_tokens)):
            there[transfers.offload_host] = here[transfers.offload_device]
            here[transfers.promote_device] = there[transfers.promote_host]
            here[transfers.copy_destination] = here[transfers.copy_source]
        return Outcome(done=transfers)

    def poll(self, *, wait: bool = False) -> Outcome:
        """Nothing is ever under way."""
        return Outcome()

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
        self.links[:] = POISON
        self.tokens[:] = -1

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
