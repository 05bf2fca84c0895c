"""Who drafts: the interface."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from kvbench.cache.types import CacheManager, Int32s
    from kvbench.engine.decodes import DecodeSet
    from kvbench.engine.schedule import Schedule
    from kvbench.engine.speculation.drafts import Drafts


class Drafter(Protocol):
    """Proposes tokens twice in a step: how many when slots are given out, which ones when KV may be written."""

    def propose(self, decoding: DecodeSet, most: Int32s) -> Drafts:
        """Drafts for the first `len(most)` decoding sequences, at most so many each; tokens may still be missing.
        May be asked again in the same step, for fewer sequences."""
        ...

    def draft(self, step: Schedule, manager: CacheManager) -> None:
        """Fill in the tokens of `step.drafts`; slots are allocated, block copies of the step are done."""
        ...
