"""Batch policies: which moves of the scheduler make up one step, and in what order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from kvbench.engine.scheduler import Scheduler


class BatchPolicy(Protocol):
    holds_finished: bool
    """Whether a finished sequence keeps its seat and its blocks until nobody of its batch runs."""

    def fill(self, scheduler: Scheduler, budget: int) -> None:
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

    def fill(self, scheduler: Scheduler, budget: int) -> None:
        if scheduler.num_running == 0:
            scheduler.seat_batch()
        if scheduler.prefilling:
            scheduler.continue_whole(budget)
        else:
            scheduler.decode()


class Continuous:
    """Iteration level: every step decodes everyone who runs, and prompts join whole.

    The budget bounds the prefill tokens of a step, but one prompt is always let in, however long.
    """

    holds_finished = False

    def fill(self, scheduler: Scheduler, budget: int) -> None:
        scheduler.decode()
        scheduler.admit_whole(budget)


class Chunked:
    """The budget bounds all tokens of a step: decodes first, then prefills in flight, then new prompts, in chunks."""

    holds_finished = False

    def fill(self, scheduler: Scheduler, budget: int) -> None:
        budget -= scheduler.decode(budget)
        budget -= scheduler.continue_chunks(budget)
        scheduler.admit_chunks(budget)
