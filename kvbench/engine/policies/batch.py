"""Batch policies: which moves of the scheduler make up one step, and in what order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sized


class Moves(Protocol):
    """What a policy can do in a step; the scheduler stands behind it. A count returned is tokens put into the step."""

    @property
    def num_running(self) -> int:
        """Sequences that prefill or decode."""
        ...

    @property
    def prefilling(self) -> Sized:
        """Seated sequences whose prompt is not computed yet."""
        ...

    def seat_batch(self) -> None:
        """Everyone first in line who fits takes a seat; nothing is computed."""
        ...

    def decode(self, limit: int | None = None) -> int:
        """One token for each of the first `limit` decoding sequences; the beams of a search are not parted."""
        ...

    def continue_whole(self, budget: int) -> int:
        """Seated prompts, whole."""
        ...

    def admit_whole(self, budget: int, spent: int = 0) -> int:
        """New prompts, whole, after `spent` tokens of the budget."""
        ...

    def continue_chunks(self, budget: int) -> int:
        """Seated prompts, in pieces."""
        ...

    def admit_chunks(self, budget: int) -> int:
        """New prompts, in pieces."""
        ...


class BatchPolicy(Protocol):
    """Which moves make up a step."""

    holds_finished: bool
    """Whether a finished sequence keeps its seat and its blocks until nobody of its batch runs."""

    def fill(self, moves: Moves, budget: int) -> None:
        """Fill the step with at most `budget` tokens."""
        ...


class Static:
    """A batch is chosen when the one before is wholly done: everyone first in line who fits, by seats and memory.

    Its prompts are computed whole, in as many steps as the budget asks for (always at least one a step); then all
    members decode in lockstep, whatever the budget, until the longest is done. Finished members keep seat and blocks
    until then, except that blocks of finished members are given back before a running one would be preempted.
    Latency of a member still ends with its own last token.
    """

    holds_finished = True

    def fill(self, moves: Moves, budget: int) -> None:
        if moves.num_running == 0:
            moves.seat_batch()
        if moves.prefilling:
            moves.continue_whole(budget)
        else:
            moves.decode()


class Continuous:
    """Iteration level: every step decodes everyone who runs, and prompts join whole.

    The budget bounds the prefill tokens of a step, but one prompt is always let in, however long.
    """

    holds_finished = False

    def fill(self, moves: Moves, budget: int) -> None:
        moves.decode()
        moves.admit_whole(budget, moves.continue_whole(budget) if moves.prefilling else 0)


class Chunked:
    """The budget bounds all tokens of a step: decodes first, then prefills in flight, then new prompts, in chunks.
    Only a beam search with more beams than budget exceeds it."""

    holds_finished = False

    def fill(self, moves: Moves, budget: int) -> None:
        budget = max(0, budget - moves.decode(budget))
        budget -= moves.continue_chunks(budget)
        moves.admit_chunks(budget)
