"""Drafts that are right or wrong as a coin says, for requests whose next tokens the oracle knows."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import numpy as np

from kvbench.engine.speculation.drafts import Drafts
from kvbench.verify.chain import Links, next_link, token_after
from kvbench.verify.honest import VOCAB

if TYPE_CHECKING:
    from kvbench.cache.types import CacheManager, Int32s
    from kvbench.engine.decodes import DecodeSet
    from kvbench.engine.schedule import Schedule
    from kvbench.engine.sequence import Sequence


class Guesser:
    """A `Drafter` that proposes between none and all of the drafts allowed, each right with this probability."""

    def __init__(self, probability: float, seed: int = 0) -> None:
        self._probability = probability
        self._random = random.Random(seed)

    def propose(self, decoding: DecodeSet, most: Int32s) -> Drafts:
        counts = [self._random.randint(0, max(0, int(count))) for count in most]
        drafts = Drafts(np.array(counts, np.int32))
        guesses = [self._guess(one, count) for one, count in zip(decoding.sequences, counts, strict=False)]
        drafts.tokens = np.array([token for tokens in guesses for token in tokens], np.int64)
        return drafts

    def draft(self, step: Schedule, manager: CacheManager) -> None:
        """The tokens are there already."""

    def _guess(self, sequence: Sequence, count: int) -> list[int]:
        link, tokens = int(Links().of(sequence.content.tokens)[-1]), list[int]()
        for _ in range(count):
            token = token_after(link, VOCAB)
            is_right = self._random.random() < self._probability
            tokens.append(token if is_right else (token + 1) % VOCAB)
            link = next_link(link, tokens[-1])
        return tokens
