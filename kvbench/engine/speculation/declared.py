"""Acceptance that is declared instead of found: for the virtual clock, which has no model to agree or disagree.

Each draft is accepted with the declared probability, by a random number of its sequence and output index: the same in
every batch and on every machine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvbench.engine.keys import token_keys
from kvbench.engine.sampling import uniforms
from kvbench.engine.speculation.drafts import Drafts, spread

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvbench.cache.types import CacheManager, Int32s, Int64s
    from kvbench.engine.decodes import DecodeSet
    from kvbench.engine.schedule import Schedule

_STREAM = np.uint64(0xACCE97ED)


def accepted(random_keys: NDArray[np.uint64], output_indices: Int64s, rate: float) -> NDArray[np.bool_]:
    """Whether the draft of each output token (its sequence's random key, its index) is accepted."""
    return uniforms(token_keys(random_keys ^ _STREAM, output_indices)) < rate


class DeclaredDrafter:
    """As many drafts as allowed, of no particular tokens; whether they are right is drawn."""

    def __init__(self, rate: float) -> None:
        self.rate = rate

    def propose(self, decoding: DecodeSet, most: Int32s) -> Drafts:
        drafts = Drafts(most)
        owners, offsets = spread(most)
        keys, indices = decoding.random_keys(len(most)), decoding.output_tokens(len(most))
        drafts.declared = accepted(keys[owners], indices[owners] + offsets, self.rate)
        return drafts

    def draft(self, step: Schedule, manager: CacheManager) -> None:
        """Nothing reads the tokens."""
