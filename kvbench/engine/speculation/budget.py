"""How many drafts a step takes: few enough for the output, the token budget, and the pool. Torch-free.

Drafts never preempt anybody: when slots for them cannot be had, the step goes without. Those of a victim go with it,
since they are proposed anew for the sequences that are left (E32).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvbench.engine.speculation.declared import DeclaredDrafter
from kvbench.engine.speculation.drafts import Drafts

if TYPE_CHECKING:
    from kvbench.cache.types import Int32s
    from kvbench.engine.decodes import DecodeSet
    from kvbench.engine.speculation.drafter import Drafter


class Speculation:
    """A drafter, asked for up to `draft_tokens` tokens per sequence."""

    def __init__(self, drafter: Drafter, draft_tokens: int) -> None:
        self.drafter = drafter
        self.draft_tokens = draft_tokens

    @property
    def guesses(self) -> bool:
        """Whether drafts are compared with what the model chooses; where acceptance is declared they are not."""
        return not isinstance(self.drafter, DeclaredDrafter)

    def drafts(self, decoding: DecodeSet, budget: int | None) -> Drafts:
        """Drafts for the sequences that a step with so many tokens decodes, first arrived first."""
        most = np.minimum(decoding.remaining(budget) - 1, self.draft_tokens)
        if budget is not None:
            most = _within(most, budget - len(most))
        return self.drafter.propose(decoding, most.astype(np.int32))

    def no_drafts(self, decoding: DecodeSet, budget: int | None) -> Drafts:
        return self.drafter.propose(decoding, np.zeros(len(decoding.rows(budget)), np.int32))


def _within(counts: Int32s, budget: int) -> Int32s:
    """The counts, the last ones cut so that they sum to no more than the budget."""
    before = np.cumsum(counts) - counts
    cut: Int32s = np.clip(budget - before, 0, counts)
    return cut
