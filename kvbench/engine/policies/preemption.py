"""What becomes of the KV of a sequence that loses its blocks: computed again, or copied out and back.

Whatever is preferred, a sequence whose blocks cannot be copied out (no room, blocks still on their way) is recomputed;
nothing is ever aborted for want of swap memory.
"""

from __future__ import annotations

from typing import Protocol

_WEIGHT = 0.2
"""Of the newest measurement in a running mean"""


class PreemptionPolicy(Protocol):
    """Whether a victim's KV is copied out or computed again."""

    def prefers_swap(self, tokens: int, blocks: int) -> bool:
        """Whether a victim with so many computed tokens in so many blocks should be copied out."""
        ...

    def saw_step(self, tokens: int, seconds: float) -> None:
        """A step computed so many tokens in that time."""
        ...

    def saw_copies(self, blocks: int, seconds: float) -> None:
        """So many blocks were copied in that time."""
        ...


class Recompute:
    """Never copied out."""

    def prefers_swap(self, tokens: int, blocks: int) -> bool:
        return False

    def saw_step(self, tokens: int, seconds: float) -> None:
        """Times do not matter here."""

    def saw_copies(self, blocks: int, seconds: float) -> None:
        """Nor here."""


class Swap(Recompute):
    """Always, as long as there is room."""

    def prefers_swap(self, tokens: int, blocks: int) -> bool:
        return True


class SwapElseRecompute:
    """Where copying out and back takes less time than computing again, by the running means of what steps and copies
    took on this engine's clock; until both are known, where there is room."""

    def __init__(self) -> None:
        self.token_s: float | None = None
        self.block_s: float | None = None

    def prefers_swap(self, tokens: int, blocks: int) -> bool:
        if self.token_s is None or self.block_s is None:
            return True
        return 2 * blocks * self.block_s < tokens * self.token_s

    def saw_step(self, tokens: int, seconds: float) -> None:
        self.token_s = _mean(self.token_s, seconds / tokens)

    def saw_copies(self, blocks: int, seconds: float) -> None:
        self.block_s = _mean(self.block_s, seconds / blocks)


def _mean(old: float | None, new: float) -> float:
    return new if old is None else (1 - _WEIGHT) * old + _WEIGHT * new
