"""How often each length occurs, at the ends of requests and in the steps of their lives.

Every exact figure of `arithmetic` is then one dot product with a function of the length, whatever the number of
requests: Σ over requests Σ over steps f(t) = Σ_t steps[t] · f(t).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kvbench.errors import UsageError

if TYPE_CHECKING:
    from kvbench.analysis.advice.lengths import Ints, LengthSample

LONGEST_TOKENS = 1 << 26
"""Counts are kept for every length up to the longest one: half a gibibyte at this length, which no model serves."""


@dataclass(frozen=True, slots=True)
class LengthCounts:
    """`ends[t]` requests end with t tokens stored, and `steps[t]` decode steps see t tokens of their request stored.

    A request of I prompt and O output tokens takes O steps, with I, I + 1 … I + O − 1 tokens; the first one is the
    end of its prefill, and the last output token is never stored. `[longest + 1]` int64 each.
    """

    ends: Ints
    steps: Ints
    requests: int
    total_steps: int
    prompt_tokens: int

    @property
    def lengths(self) -> Ints:
        return np.arange(len(self.ends), dtype=np.int64)

    @property
    def end_tokens(self) -> int:
        """Σ tokens stored at the end."""
        return int(self.ends @ self.lengths)

    @property
    def step_tokens(self) -> int:
        """Σ over steps of the tokens stored."""
        return int(self.steps @ self.lengths)


def count_lengths(sample: LengthSample) -> LengthCounts:
    """Counts of a sample. Raises `UsageError` for lengths that no model serves."""
    longest = int(sample.stored.max())
    if longest > LONGEST_TOKENS:
        raise UsageError(
            f"{sample.label}: a request of {longest + 1:,} tokens is longer than any model serves",
            hint="leave out what is longer than the model's context",
        )
    begins = np.bincount(sample.inputs, minlength=longest + 2).astype(np.int64)
    stops = np.bincount(sample.stored + 1, minlength=longest + 2).astype(np.int64)
    return LengthCounts(
        ends=stops[1:],
        steps=np.cumsum(begins - stops)[:-1],
        requests=len(sample),
        total_steps=int(sample.outputs.sum()),
        prompt_tokens=int(sample.inputs.sum()),
    )
