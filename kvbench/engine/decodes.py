"""The decoding sequences as arrays, kept from step to step so that a decode step computes with all of them at once."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvbench.cache.types import Int32s, Int64s
    from kvbench.engine.sequence import Sequence

_ROW, _LENGTH, _LIMIT, _INPUT, _TOKEN, _KEY = range(6)


class DecodeSet:
    """Sequences that decode, first arrived first; entry i of every array belongs to `sequences[i]`."""

    def __init__(self, capacity: int) -> None:
        self.sequences: list[Sequence] = []
        self._table = np.zeros((6, capacity), np.int64)
        self._num_forced = 0
        self._num_stopping = 0

    def __len__(self) -> int:
        return len(self.sequences)

    def rows(self, limit: int | None = None) -> Int32s:
        """Block-table rows of the first `limit` sequences."""
        return self._first(_ROW, limit).astype(np.int32)

    def lengths(self, limit: int | None = None) -> Int32s:
        """Known tokens; the last one is not computed yet."""
        return self._first(_LENGTH, limit).astype(np.int32)

    def last_tokens(self, limit: int | None = None) -> Int64s:
        """The query tokens."""
        return self._first(_TOKEN, limit).copy()

    def random_keys(self, limit: int | None = None) -> NDArray[np.uint64]:
        return self._first(_KEY, limit).view(np.uint64)

    def output_tokens(self, limit: int | None = None) -> Int64s:
        """Output tokens so far."""
        return self._first(_LENGTH, limit) - self._first(_INPUT, limit)

    def remaining(self, limit: int | None = None) -> Int64s:
        """Output tokens that are still to come, at most."""
        return self._first(_LIMIT, limit) - self._first(_LENGTH, limit)

    def is_complete(self, limit: int | None = None) -> NDArray[np.bool_]:
        """Whether the output has reached its longest."""
        return self._first(_LENGTH, limit) >= self._first(_LIMIT, limit)

    def tokens_left(self) -> Int64s:
        """Output tokens still to come, at most."""
        count = len(self)
        left: Int64s = self._table[_LIMIT, :count] - self._table[_LENGTH, :count]
        return left

    @property
    def has_stop_tokens(self) -> bool:
        """Whether some output may end before its longest."""
        return self._num_stopping > 0

    def add(self, sequence: Sequence) -> None:
        """A sequence whose prefill is done and whose newest token is known."""
        job, count = sequence.job, len(self)
        place = bisect_left(self.sequences, sequence.order, key=lambda other: other.order)
        self.sequences.insert(place, sequence)
        self._table[:, place + 1 : count + 1] = self._table[:, place:count].copy()
        self._table[:, place] = (
            sequence.table_row,
            sequence.length,
            job.total_tokens,
            len(job.prompt),
            sequence.content.tokens[-1],
            np.uint64(sequence.random_key).view(np.int64),
        )
        self._count(sequence, 1)
        sequence.is_decoding = True

    def remove(self, sequence: Sequence) -> None:
        keep = np.ones(len(self), bool)
        keep[self.sequences.index(sequence)] = False
        self._keep(keep)

    def append(self, sampled: Int64s, now_s: float) -> None:
        """The first `len(sampled)` sequences each get a token (the forced one where there is one)."""
        count = len(sampled)
        tokens: list[int] = sampled.tolist()
        decoding = self.sequences[:count]
        if self._num_forced:
            tokens = [sequence.choose(token) for sequence, token in zip(decoding, tokens, strict=True)]
        for sequence, token in zip(decoding, tokens, strict=True):  # `Sequence.append` by hand: the step's longest loop
            sequence.content.append(token)
            sequence.token_times_s.append(now_s)
        self._table[_TOKEN, :count] = tokens
        self._table[_LENGTH, :count] += 1

    def advance(self, newest: Int64s, times_s: list[float]) -> None:
        """Every sequence got as many tokens as there are times; its content has them already, `newest` the last."""
        for sequence in self.sequences:
            sequence.token_times_s.extend(times_s)
        self._table[_TOKEN, : len(self)] = newest
        self._table[_LENGTH, : len(self)] += len(times_s)

    def append_several(self, chosen: list[list[int]], now_s: float) -> Int64s:
        """The first `len(chosen)` sequences each get one or more tokens, up to the first that stops them; returns how
        many each."""
        kept = np.empty(len(chosen), np.int64)
        for at, (sequence, tokens) in enumerate(zip(self.sequences, chosen, strict=False)):
            kept[at] = sequence.append_several(tokens, now_s)
            self._table[_TOKEN, at] = sequence.content.tokens[-1]
        self._table[_LENGTH, : len(chosen)] += kept
        return kept

    def take_finished(self, count: int) -> list[Sequence]:
        """Remove and return those of the first `count` sequences whose output is complete."""
        done = self.is_complete(count)
        if self._num_stopping:
            newest = zip(self.sequences[:count], self._first(_TOKEN, count).tolist(), strict=True)
            done |= np.fromiter((token in s.job.stop_tokens for s, token in newest), bool, count)
        if not done.any():
            return []
        finished = [self.sequences[index] for index in np.flatnonzero(done)]
        for sequence in finished:
            sequence.end()
        self._keep(np.concatenate([~done, np.ones(len(self) - count, bool)]))
        return finished

    def _first(self, column: int, limit: int | None) -> Int64s:
        count = len(self.sequences)
        return self._table[column, : count if limit is None else min(limit, count)]

    def _keep(self, keep: NDArray[np.bool_]) -> None:
        count, left = len(self), int(keep.sum())
        for index in np.flatnonzero(~keep):
            self._count(self.sequences[index], -1)
        self._table[:, :left] = self._table[:, :count][:, keep]
        self.sequences = [sequence for sequence, kept in zip(self.sequences, keep.tolist(), strict=True) if kept]

    def _count(self, sequence: Sequence, by: int) -> None:
        self._num_forced += by * (sequence.forced is not None)
        self._num_stopping += by * bool(sequence.job.stop_tokens)
