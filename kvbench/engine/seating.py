"""Who comes in: the first in line is looked up and planned, waits, or takes a row and, unless it loads, a seat."""

from __future__ import annotations

from bisect import insort
from typing import TYPE_CHECKING

from kvbench.engine.duplicates import computed_by

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvbench.cache.types import Plan
    from kvbench.engine.scheduler import Scheduler
    from kvbench.engine.sequence import Sequence


class Seating:
    """Moves that admit, over one scheduler."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._max_loading = scheduler.manager.settings.max_sequences - scheduler.max_sequences
        self._deduplicates = scheduler.settings.deduplicate_prefixes
        self.timer: Callable[[], float] | None = None
        """Seconds, to time look-ups with"""

    def candidate(self, limit: int | None = None) -> tuple[Sequence, Plan] | None:
        """Who is admitted next, with the plan for its first `limit` tokens (None: all); None when nobody is."""
        scheduler = self._scheduler
        while (sequence := self._first_in_line()) is not None:
            plan = self._plan(sequence, sequence.length if limit is None else min(sequence.length, limit))
            if self._deduplicates and sequence.swapped is None and self._waits_for_another(sequence, plan):
                continue
            is_admitted = plan.fits and scheduler.admission.admits(sequence, plan, scheduler)
            return (sequence, plan) if is_admitted else None
        return None

    def seat(self, sequence: Sequence, plan: Plan) -> None:
        """Carry out the plan. One whose blocks are still on their way has its row, and gets its seat when they are
        there."""
        scheduler = self._scheduler
        admitted = scheduler.manager.commit(plan)
        if sequence.swapped is None:
            scheduler.waiting.admit(sequence)
        else:
            scheduler.swapped.remove(sequence)
            scheduler.manager.give_up_swapped(sequence.swapped)
            sequence.swapped = None
        sequence.sit_down(admitted.row, admitted.cached_tokens, plan.hold_tokens)
        sequence.is_loading = scheduler.overlaps and scheduler.manager.is_loading(admitted.row)
        insort(scheduler.prefilling, sequence, key=lambda other: other.order)
        scheduler.branching.reserved_seats += sequence.seats - 1
        scheduler.step.admissions += 1

    def seat_arrived(self) -> None:
        """Whose blocks have all arrived takes a seat, the first in line first; the others go on loading."""
        scheduler = self._scheduler
        loading = [sequence for sequence in scheduler.prefilling if sequence.is_loading]
        loading_seats = sum(sequence.seats for sequence in loading)
        taken = scheduler.num_running + scheduler.branching.reserved_seats - loading_seats
        free = scheduler.max_sequences - len(scheduler.held) - taken
        for sequence in loading:
            if free >= sequence.seats and not scheduler.manager.is_loading(sequence.table_row):
                sequence.is_loading = False
                free -= sequence.seats

    def _waits_for_another(self, sequence: Sequence, plan: Plan) -> bool:
        """Park the first in line while a running prefill computes blocks that it would hit a little later."""
        scheduler = self._scheduler
        if scheduler.waiting.is_overdue(sequence):
            return False
        block_size = scheduler.manager.settings.block_size
        found = computed_by(sequence, plan.cached_tokens, scheduler.prefilling, block_size)
        if found is None:
            return False
        leader, until = found
        scheduler.waiting.park(sequence, leader, until)
        return True

    def _first_in_line(self) -> Sequence | None:
        """Who may be admitted next, the swapped first (E42). Nobody in a step that preempted: the room was made for
        those who run. Who loads takes a row and no seat (E33)."""
        scheduler = self._scheduler
        rows_taken = scheduler.num_running + len(scheduler.held) + scheduler.branching.reserved_seats
        has_preempted = scheduler.step.preemptions > 0 and scheduler.num_running > 0
        if has_preempted or not scheduler.num_waiting or rows_taken >= scheduler.manager.settings.max_sequences:
            return None
        seats_taken = max(rows_taken - scheduler.num_loading, rows_taken - self._max_loading)
        first = scheduler.swapped[0] if scheduler.swapped else scheduler.waiting.first()
        return None if first is None or seats_taken + first.seats > scheduler.max_sequences else first

    def _plan(self, sequence: Sequence, hold_tokens: int) -> Plan:
        scheduler = self._scheduler
        promise = scheduler.admission.promise(sequence)
        forks = 0 if sequence.group is None else scheduler.branching.fork_blocks(sequence, promise)
        started = self.timer() if self.timer is not None else 0.0
        plan = scheduler.manager.plan(
            sequence.content,
            hold_tokens,
            promise,
            readmission=sequence.cached_tokens is not None,
            fork_blocks=forks,
            swapped=sequence.swapped,
        )
        if self.timer is not None:
            scheduler.step.lookup_s += self.timer() - started
        return plan
