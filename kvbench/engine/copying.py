"""Block copies between the books that decide them, the runner that carries them out, and the step that waits.

What has ended goes back to the books at once; a sequence whose blocks did not come falls back to computing them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvbench.engine.copies import Moved, arriving
from kvbench.errors import InternalError

if TYPE_CHECKING:
    from kvbench.engine.clock import Clock
    from kvbench.engine.copies import Outcome
    from kvbench.engine.loop import Runner
    from kvbench.engine.scheduler import Scheduler


class Copying:
    """The copies of one engine. Where they block, a step waits for all that its sequences need."""

    def __init__(self, scheduler: Scheduler, runner: Runner, clock: Clock, *, is_blocking: bool) -> None:
        self._scheduler = scheduler
        self._manager = scheduler.manager
        self._runner = runner
        self._clock = clock
        self._is_blocking = is_blocking
        self.under_way = 0
        """Begun and not ended"""
        self._arriving = 0
        """Of these, the ones that sequences wait for"""
        self.disk_error: str | None = None
        """Why the disk tier was switched off"""

    def begin(self, moved: Moved) -> int:
        """Begin the copies that were decided, before anything else touches KV; how many."""
        transfers = self._manager.take_transfers()
        if transfers:
            begun = self._clock.now()
            self.under_way += len(transfers)
            self._arriving += arriving(transfers)
            outcome = self._runner.start(transfers)
            if outcome.done:
                self._scheduler.preemption.saw_copies(len(outcome.done), self._clock.now() - begun)
            self._note(outcome, moved)
        while self._arriving and self._is_blocking:
            self.wait(moved)
        return len(transfers)

    def poll(self, moved: Moved) -> None:
        """Note what has ended meanwhile."""
        if self.under_way:
            self._note(self._runner.poll(), moved)

    def wait(self, moved: Moved) -> None:
        """Until at least one more has ended."""
        begun = self._clock.now()
        outcome = self._runner.poll(wait=True)
        moved.promotion_stall_s += self._clock.now() - begun
        if not len(outcome):
            raise InternalError(f"{self.under_way} block copies are under way, and none of them ends")
        self._note(outcome, moved)

    def finish(self) -> None:
        """Carry out what is decided and wait for all, those of requests that are gone included."""
        self.begin(Moved())
        while self.under_way:
            self.wait(Moved())

    def lose_disk(self, reason: str) -> None:
        """The disk tier is not used again; the first reason is kept."""
        if self.disk_error is None:
            self.disk_error = reason
            self._manager.switch_off_disk()

    def _note(self, outcome: Outcome, moved: Moved) -> None:
        moved.add(outcome)
        if len(outcome):
            self.under_way -= len(outcome)
            self._arriving -= arriving(outcome.done) + arriving(outcome.failed)
            # Failures first: what was copied on from a block that failed in the same batch is bad as well.
            spoiled = set(self._manager.fail(outcome.failed)) if outcome.failed else set()
            spoiled |= set(self._manager.complete(outcome.done))
            if spoiled:
                self._scheduler.fall_back(sorted(spoiled))
        if outcome.disk_error is not None:
            self.lose_disk(outcome.disk_error)
