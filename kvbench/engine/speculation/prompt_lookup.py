"""Drafts from the sequence itself: what followed the last tokens when they occurred before (Saxena 2023, "Prompt lookup
decoding"). No model, no KV."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvbench.engine.speculation.drafts import Drafts

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvbench.cache.types import CacheManager, Int32s
    from kvbench.engine.decodes import DecodeSet
    from kvbench.engine.schedule import Schedule

LONGEST_NGRAM = 3


class PromptLookup:
    """The newest earlier occurrence of the last three tokens counts, else of the last two, else of the last one."""

    def propose(self, decoding: DecodeSet, most: Int32s) -> Drafts:
        sequences = decoding.sequences[: len(most)]
        found = [look_up(s.content.tokens, count) for s, count in zip(sequences, most.tolist(), strict=True)]
        drafts = Drafts(np.array([len(tokens) for tokens in found], np.int32))
        if drafts.total:
            drafts.tokens = np.concatenate(found).astype(np.int64)
        return drafts

    def draft(self, step: Schedule, manager: CacheManager) -> None:
        """The tokens are known already."""


def look_up(tokens: NDArray[np.int32], count: int) -> NDArray[np.int32]:
    """Up to `count` tokens that followed the newest earlier occurrence of the longest known ending."""
    for size in range(min(LONGEST_NGRAM, len(tokens) - 1), 0, -1) if count > 0 else ():
        starts = np.flatnonzero(tokens[: len(tokens) - size] == tokens[-size])
        for offset in range(1, size):
            starts = starts[tokens[starts + offset] == tokens[len(tokens) - size + offset]]
        if len(starts):
            first = int(starts[-1]) + size
            return tokens[first : first + count]
    return tokens[:0]
