"""The decoding sequences as arrays, kept from step to step so that a decode step loops over none of them."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvbench.engine.sequence import Sequence


class DecodeSet:
    """Sequences that decode, first arrived first; entry i of every array belongs to `sequences[i]`.

    `rows` int32 block-table rows · `lengths` int32 known tokens · `limits` int32 the length at which the output is
    complete · `inputs` int32 prompt tokens · `last_tokens` int64 the query tokens · `random_keys` uint64.
    """

    def __init__(self) -> None:
        self.sequences: list[Sequence] = []
        self.rows = np.empty(0, np.int32)
        self.lengths = np.empty(0, np.int32)
        self.limits = np.empty(0, np.int32)
        self.inputs = np.empty(0, np.int32)
        self.last_tokens = np.empty(0, np.int64)
        self.random_keys = np.empty(0, np.uint64)
        self._num_forced = 0
        self._num_stopping = 0

    def __len__(self) -> int:
        return len(self.sequences)

    def add(self, sequence: Sequence) -> None:
        """A sequence whose prefill is done and whose newest token is known."""
        job = sequence.job
        place = bisect_left(self.sequences, sequence.order, key=lambda other: other.order)
        self.sequences.insert(place, sequence)
        self.rows = np.insert(self.rows, place, sequence.table_row)
        self.lengths = np.insert(self.lengths, place, sequence.length)
        self.limits = np.insert(self.limits, place, job.total_tokens)
        self.inputs = np.insert(self.inputs, place, len(job.prompt))
        self.last_tokens = np.insert(self.last_tokens, place, sequence.content.tokens[-1])
        self.random_keys = np.insert(self.random_keys, place, np.uint64(sequence.random_key))
        self._num_forced += sequence.forced is not None
        self._num_stopping += bool(job.stop_tokens)
        sequence.is_decoding = True

    def remove(self, sequence: Sequence) -> None:
        keep = np.ones(len(self), bool)
        keep[self.sequences.index(sequence)] = False
        self._keep(keep)

    def append(self, sampled: NDArray[np.int64], now_s: float) -> None:
        """The first `len(sampled)` sequences each get a token (the forced one where there is one)."""
        count = len(sampled)
        tokens: list[int] = sampled.tolist()
        decoding = self.sequences[:count]
        if self._num_forced:
            tokens = [sequence.choose(token) for sequence, token in zip(decoding, tokens, strict=True)]
        for sequence, token in zip(decoding, tokens, strict=True):
            sequence.append(token, now_s)
        self.last_tokens[:count] = tokens
        self.lengths[:count] += 1

    def take_finished(self, count: int) -> list[Sequence]:
        """Remove and return those of the first `count` sequences whose output is complete."""
        done = self.lengths[:count] >= self.limits[:count]
        if self._num_stopping:
            newest = zip(self.sequences[:count], self.last_tokens[:count].tolist(), strict=True)
            done |= np.fromiter((token in s.job.stop_tokens for s, token in newest), bool, count)
        if not done.any():
            return []
        finished = [self.sequences[index] for index in np.flatnonzero(done)]
        for sequence in finished:
            sequence.end()
        self._keep(np.concatenate([~done, np.ones(len(self) - count, bool)]))
        return finished

    def _keep(self, keep: NDArray[np.bool_]) -> None:
        for index in np.flatnonzero(~keep):
            self._num_forced -= self.sequences[index].forced is not None
            self._num_stopping -= bool(self.sequences[index].job.stop_tokens)
        self.sequences = [sequence for sequence, kept in zip(self.sequences, keep.tolist(), strict=True) if kept]
        for name in ("rows", "lengths", "limits", "inputs", "last_tokens", "random_keys"):
            setattr(self, name, getattr(self, name)[keep])
