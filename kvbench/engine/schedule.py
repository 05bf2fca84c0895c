"""What one step will do: who decodes, which pieces of which prompts are computed, who left on the way."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from kvbench.engine.speculation.drafts import sampled_keys

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvbench.cache.types import Int32s, Int64s
    from kvbench.engine.branching import BeamStep
    from kvbench.engine.decodes import DecodeSet
    from kvbench.engine.sequence import Sequence
    from kvbench.engine.speculation.drafts import Drafts

    Candidates = tuple[Int64s, NDArray[np.float64]]


@dataclass(slots=True)
class Piece:
    """Tokens [start, start + count) of a sequence whose prefill is running."""

    sequence: Sequence
    start: int
    count: int

    @property
    def end(self) -> int:
        return self.start + self.count

    @property
    def is_last(self) -> bool:
        """Whether the next token is sampled after this piece."""
        return self.end == self.sequence.length


@dataclass(slots=True)
class Schedule:
    """Filled by a batch policy, then sealed into arrays: decodes first, pieces behind them.

    Nobody in it can be preempted any more: growth of all decodes is settled before anything else is scheduled.
    """

    num_decodes: int = 0
    pieces: list[Piece] = field(default_factory=list)
    now_s: float = 0.0
    """When it was decided"""
    admissions: int = 0
    lookup_s: float = 0.0
    """Spent on admission plans, look-ups included"""
    preemptions: int = 0
    failed: list[Sequence] = field(default_factory=list)
    drafts: Drafts | None = None
    """Of the decoding sequences, where speculation is on"""
    beams: list[BeamStep] = field(default_factory=list)
    candidates: list[Candidates] = field(default_factory=list)
    """Of each search in `beams`: token ids and log-probabilities `[rows, n]` of the likeliest continuations"""
    decoding: list[Sequence] = field(default_factory=list)
    samplers: list[Sequence] = field(init=False)
    """Who samples a first token; several for one piece when it ends the prompt of n samples"""
    rows: Int32s = field(init=False)
    """[S]"""
    starts: Int32s = field(init=False)
    """[S] position of each sequence's first query token"""
    counts: Int32s = field(init=False)
    """[S] query tokens"""
    decode_tokens: NDArray[np.int64] = field(init=False)
    """[num_decodes] the query tokens"""
    random_keys: NDArray[np.uint64] = field(init=False)
    """[n] of the sequences that sample: the decodes, then those whose piece is their last"""
    output_indices: NDArray[np.int64] = field(init=False)
    """[n] which output token each of them samples, from 0"""

    @property
    def is_empty(self) -> bool:
        return self.num_decodes == 0 and not self.pieces

    @property
    def ends(self) -> Int32s:
        """[S] computed tokens after the step."""
        return self.starts + self.counts

    @property
    def prefill_tokens(self) -> int:
        return sum(piece.count for piece in self.pieces)

    @property
    def last_pieces(self) -> list[Piece]:
        return [piece for piece in self.pieces if piece.is_last]

    @property
    def sampling_sequences(self) -> list[Sequence]:
        """One for each row that is sampled from."""
        if self.drafts is None:
            return self.decoding + self.samplers
        repeated = zip(self.decoding, self.drafts.rows.tolist(), strict=True)
        return [sequence for sequence, rows in repeated for _ in range(rows)] + self.samplers

    def drop(self, sequence: Sequence) -> None:
        """The sequence leaves the step, which must be sealed again."""
        self.pieces = [piece for piece in self.pieces if piece.sequence is not sequence]
        if sequence in self.decoding:
            at = self.decoding.index(sequence)
            self.num_decodes -= 1
            del self.decoding[at]
            if self.drafts is not None:
                self.drafts.remove(at)

    def seal(self, decoding: DecodeSet) -> None:
        """Take the arrays of the decodes as they stand and put the pieces behind them."""
        n, pieces = self.num_decodes, self.pieces
        self.samplers = samplers = [member for piece in self.last_pieces for member in piece.sequence.samplers]
        self.decoding = decoding.sequences[:n]
        self.decode_tokens = decoding.last_tokens(n)
        self.rows = _join(decoding.rows(n), [piece.sequence.table_row for piece in pieces])
        self.starts = _join(decoding.lengths(n) - 1, [piece.start for piece in pieces])
        self.counts = _join(np.ones(n, np.int32), [piece.count for piece in pieces])
        self.random_keys = _join(decoding.random_keys(n), [sequence.random_key for sequence in samplers])
        self.output_indices = _join(decoding.output_tokens(n), [sequence.output_tokens for sequence in samplers])
        if self.drafts is not None:
            keys, indices = self.random_keys, self.output_indices
            self.random_keys, self.output_indices = sampled_keys(keys, indices, self.drafts, n)


def _join(decodes: NDArray, pieces: list) -> NDArray:  # type: ignore[type-arg]
    """The pieces' values behind the decodes', in the decodes' dtype; without pieces a copy."""
    return np.concatenate([decodes, np.array(pieces, decodes.dtype)])
