"""The drafts of one step, and the rows in which the model verifies them. Torch-free.

A sequence with the known tokens [0, length) and d drafts is computed as d + 1 rows, one token each: row j stands at
position length − 1 + j, sees everything before it, and has its logits taken. All rows of a step write their K and V
before any of them is attended to, so each is an ordinary row of a decode step over the same block table.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvbench.cache.types import Int32s, Int64s
    from kvbench.engine.schedule import Schedule


@dataclass(slots=True)
class Drafts:
    """`counts` `[n]` drafts of each decoding sequence of the step, `tokens` `[sum]` one after the other."""

    counts: Int32s
    tokens: Int64s = field(init=False)
    declared: NDArray[np.bool_] | None = None
    """`[sum]` which drafts are right, where that is declared and not found by the model"""
    accepted: int = 0
    """Drafts that became output"""
    rollbacks: int = 0
    """Sequences whose table was cut back"""

    def __post_init__(self) -> None:
        self.tokens = np.zeros(self.total, np.int64)

    def remove(self, at: int) -> None:
        """The sequence leaves the step."""
        first = int(self.firsts[at])
        gone = np.arange(first, first + int(self.counts[at]))
        self.tokens = np.delete(self.tokens, gone)
        if self.declared is not None:
            self.declared = np.delete(self.declared, gone)
        self.counts = np.delete(self.counts, at)

    @property
    def total(self) -> int:
        return int(self.counts.sum())

    @property
    def firsts(self) -> Int64s:
        """[n] place of each sequence's first draft in `tokens`."""
        return np.cumsum(self.counts, dtype=np.int64) - self.counts

    @property
    def rows(self) -> Int32s:
        """[n] rows in which each sequence is verified."""
        return self.counts + np.int32(1)


@dataclass(frozen=True, slots=True)
class VerificationRows:
    """One row per token of the decoding sequences, drafts included."""

    rows: Int32s
    """Of the block tables"""
    starts: Int32s
    tokens: Int64s


def verification_rows(step: Schedule, drafts: Drafts) -> VerificationRows:
    """The decoding sequences of the step, each as one row per token."""
    n = step.num_decodes
    owners, offsets = spread(drafts.rows)
    tokens = np.empty(len(owners), np.int64)
    tokens[offsets == 0] = step.decode_tokens
    tokens[offsets > 0] = drafts.tokens
    return VerificationRows(step.rows[:n][owners], step.starts[:n][owners] + offsets, tokens)


def spread(counts: Int32s) -> tuple[Int64s, Int32s]:
    """For `counts` things of each owner: whose it is, and its number with that owner, from 0."""
    owners = np.repeat(np.arange(len(counts), dtype=np.int64), counts)
    firsts = np.cumsum(counts) - counts
    return owners, (np.arange(len(owners)) - firsts[owners]).astype(np.int32)


def sampled_keys(
    keys: NDArray[np.uint64], indices: Int64s, drafts: Drafts, num_decodes: int
) -> tuple[NDArray[np.uint64], Int64s]:
    """Random keys and output indices with those of the decoding sequences repeated: row j samples j tokens further."""
    owners, offsets = spread(drafts.rows)
    return (
        np.concatenate([keys[:num_decodes][owners], keys[num_decodes:]]),
        np.concatenate([indices[:num_decodes][owners] + offsets, indices[num_decodes:]]),
    )
