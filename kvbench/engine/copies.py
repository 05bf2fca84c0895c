"""Block copies as the loop sees them: begun, then done or failed. Torch-free.

A runner is given `Transfers` by `start` and answers with an `Outcome` what has ended of them; what has not is reported
by `poll`. A synchronous runner does everything in `start`, returns `Outcome(done=transfers)`, and has nothing to say in
`poll`. Copies of the kinds in `MUST_BE_DONE` have ended when `start` returns.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from kvbench.cache.transfers import ARRIVALS, COPY_KINDS, Transfers


def arriving(transfers: Transfers) -> int:
    """Copies among these that sequences wait for."""
    return sum(len(transfers.pairs(kind)[0]) for kind in ARRIVALS)


@dataclass(slots=True)
class Outcome:
    """Copies that have ended. `failed` ones left nothing that may be read: late, torn, corrupted, or refused."""

    done: Transfers = field(default_factory=Transfers)
    failed: Transfers = field(default_factory=Transfers)
    promotion_stall_s: float = 0.0
    """Time that `start` took for blocks that sequences wait for"""
    disk_error: str | None = None
    """Why the disk tier can no longer be written; it is not used again"""

    def __len__(self) -> int:
        return len(self.done) + len(self.failed)


@dataclass(slots=True)
class Moved:
    """What one step's copies came to, in blocks."""

    done: Counter[str] = field(default_factory=Counter)
    """By kind"""
    failed: int = 0
    promotion_stall_s: float = 0.0

    def add(self, outcome: Outcome) -> None:
        for kind in COPY_KINDS if outcome.done else ():
            self.done[kind] += len(outcome.done.pairs(kind)[0])
        self.failed += len(outcome.failed)
        self.promotion_stall_s += outcome.promotion_stall_s
