"""One step's work as arrays: what the scheduler hands to the model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

PAD_SLOT = -1
"""Slot of a row that fills up a batch (context length 0): it is written nowhere. Only the Triton path has such rows."""


@dataclass(slots=True)
class StepBatch:
    """S sequences, T tokens, G layer groups. The first `num_decodes` sequences have one query token each and take
    the decode kernel; the rest are prefill pieces.

    Token i of sequence s stands at row `query_starts[s] + i` of the T axis. All arrays are numpy, on the host.
    """

    token_ids: NDArray[np.int64]
    """[T]"""
    positions: NDArray[np.int64]
    """[T] position of each token in its sequence"""
    slots: NDArray[np.int64]
    """[G, T] flat slot that each token's K and V are written to"""
    block_tables: NDArray[np.int32]
    """[G, S, width] physical blocks, 0 beyond a sequence's end"""
    query_starts: NDArray[np.int32]
    """[S + 1] row of each sequence's first token; the last entry is T"""
    context_lengths: NDArray[np.int32]
    """[S] tokens whose KV is stored once this step's are written"""
    num_decodes: int
    logit_rows: NDArray[np.int64]
    """[n] rows of the T axis whose logits are wanted, in the order of the sequences that sample"""

    @property
    def num_sequences(self) -> int:
        return len(self.context_lengths)

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def query_lengths(self) -> NDArray[np.int32]:
        return np.diff(self.query_starts)
