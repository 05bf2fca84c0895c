"""Who runs in the next step: seats, moves for the batch policies, preemption, and the books after the step.

A sequence is in exactly one place: `waiting`, `prefilling`, `decoding`, `held` (finished, blocks kept by a static
batch) or gone.
"""

from __future__ import annotations

import sys
from bisect import bisect_left, insort
from typing import TYPE_CHECKING

import numpy as np

from kvbench.engine.branching import Branching
from kvbench.engine.decodes import DecodeSet
from kvbench.engine.duplicates import computed_by
from kvbench.engine.policies.registry import admission_policy, batch_policy, order_of, victim_policy
from kvbench.engine.policies.victims import spare_restarted
from kvbench.engine.schedule import Piece, Schedule
from kvbench.engine.waiting import WaitingQueue
from kvbench.errors import InternalError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from numpy.typing import NDArray

    from kvbench.cache.types import AppendPlan, CacheManager, Plan
    from kvbench.engine.job import Job
    from kvbench.engine.sequence import Sequence
    from kvbench.spec.engine import EngineSettings


class Scheduler:
    """Seats over one cache manager; torch-free."""

    def __init__(self, manager: CacheManager, settings: EngineSettings) -> None:
        self.manager = manager
        self.settings = settings
        self.policy = batch_policy(settings.batch_policy)
        self.admission = admission_policy(manager, settings)
        self.victims = victim_policy(manager, settings)
        self.max_sequences = settings.max_sequences
        self.max_batch_tokens = settings.max_batch_tokens
        is_bounded = settings.order != "fcfs" or settings.deduplicate_prefixes
        limit = settings.starvation_limit if is_bounded else sys.maxsize
        self.deduplicates = settings.deduplicate_prefixes
        self.waiting = WaitingQueue(order_of(settings.order, manager), limit)
        self.prefilling: list[Sequence] = []
        self.decoding = DecodeSet(settings.max_sequences)
        self.held: list[Sequence] = []
        self.branching = Branching(self)
        self._step = Schedule()
        self.timer: Callable[[], float] | None = None
        """Seconds, to time look-ups with"""

    @property
    def num_running(self) -> int:
        return len(self.prefilling) + len(self.decoding)

    @property
    def has_work(self) -> bool:
        return self.num_running > 0 or len(self.waiting) > 0

    def reason_to_reject(self, job: Job) -> str | None:
        """Why the job can never be served, None when it can (E26); exactly fitting is fitting (E27)."""
        limit = self.manager.settings.max_context
        asked = f"{len(job.prompt)} input + {job.max_tokens} output tokens"
        if job.total_tokens > limit:
            return f"{asked} exceed the maximum context of {limit}"
        if not self.manager.can_ever_fit(job.slots_needed):
            sizes = self.manager.settings
            return f"{asked} can never fit into the pool of {sizes.num_blocks} blocks of {sizes.block_size} tokens"
        return self.branching.reason_to_reject(job) if job.width > 1 else None

    def add(self, sequence: Sequence) -> None:
        self.waiting.push(sequence)
        if sequence.group is not None:
            self.branching.added(sequence.group)

    def schedule(self, now_s: float) -> Schedule:
        """Fill one step by the batch policy; slots of all its tokens are allocated when this returns."""
        self._step = step = Schedule()
        self.waiting.order.begin_step()
        self.policy.fill(self, self.max_batch_tokens)
        if step.is_empty and self.has_work and not step.failed and not self.manager.deferred_blocks():
            raise InternalError(f"{self.num_running} sequences run and {len(self.waiting)} wait, yet none can proceed")
        self.admission.observe(step, self)
        step.seal(self.decoding)
        if self.branching.searches:
            self.branching.note_beams(step)
        for piece in step.pieces:
            if piece.sequence.first_scheduled_s is None:
                piece.sequence.first_scheduled_s = now_s
        return step

    # Moves of the batch policies; each returns the tokens that it has put into the step.

    def decode(self, limit: int | None = None) -> int:
        """One token for each of the first `limit` decoding sequences; makes room by preemption where there is none."""
        while len(self.decoding) > 0:
            if self.branching.searches:
                limit = self.branching.whole_groups(limit)
            rows, lengths = self.decoding.rows(limit), self.decoding.lengths(limit)
            plan = self.manager.plan_append(rows, lengths)
            if plan.fits:
                self.manager.commit_append(plan)
                self._step.num_decodes = len(rows)
                return len(rows)
            if plan.shortfall_blocks <= self.manager.deferred_blocks():
                return self._decode_what_fits(len(rows))
            self._make_room()
        return 0

    def _decode_what_fits(self, limit: int) -> int:
        """Room is on its way, so nobody more is preempted for it (E39): the first arrived who fit without it."""
        count = bisect_left(range(1, limit), True, key=lambda n: not self._growth(n).fits)
        if count:
            self.manager.commit_append(self._growth(count))
            self._step.num_decodes = count
        return count

    def _growth(self, count: int) -> AppendPlan:
        return self.manager.plan_append(self.decoding.rows(count), self.decoding.lengths(count))

    def continue_chunks(self, budget: int) -> int:
        """Prefills in flight go on by what is left of the budget."""
        spent = 0
        for sequence in self.prefilling:
            if spent == budget:
                break
            spent += self._compute(sequence, min(sequence.missing, budget - spent))
        return spent

    def continue_whole(self, budget: int) -> int:
        """Seated prompts are computed whole while the budget lasts, at least one."""
        spent = 0
        for sequence in self.prefilling:
            if spent > 0 and spent + sequence.missing > budget:
                break
            spent += self._compute(sequence, sequence.missing)
        return spent

    def admit_chunks(self, budget: int) -> int:
        """New prompts begin by what is left of the budget."""
        spent = 0
        while spent < budget and (found := self._candidate(budget - spent)) is not None:
            sequence, plan = found
            self._seat(sequence, plan)
            spent += self._compute(sequence, min(sequence.missing, budget - spent))
        return spent

    def admit_whole(self, budget: int) -> int:
        """New prompts are computed whole while the budget lasts, at least one. Cached tokens cost no budget (E15)."""
        spent = 0
        while (found := self._candidate()) is not None:
            sequence, plan = found
            tokens = sequence.length - plan.cached_tokens
            if spent > 0 and spent + tokens > budget:
                break
            self._seat(sequence, plan)
            spent += self._compute(sequence, tokens)
        return spent

    def seat_batch(self) -> None:
        """Everyone first in line who fits takes a seat, blocks for the whole prompt included."""
        while (found := self._candidate()) is not None:
            self._seat(*found)

    def _candidate(self, limit: int | None = None) -> tuple[Sequence, Plan] | None:
        """Who is admitted next, with the plan for its first `limit` tokens (None: all); None when nobody is."""
        while (sequence := self._first_in_line()) is not None:
            plan = self._plan(sequence, sequence.length if limit is None else min(sequence.length, limit))
            if self.deduplicates and self._waits_for_another(sequence, plan):
                continue
            return (sequence, plan) if plan.fits and self.admission.admits(sequence, plan, self) else None
        return None

    def _waits_for_another(self, sequence: Sequence, plan: Plan) -> bool:
        """Park the first in line while a running prefill computes blocks that it would hit a little later."""
        if self.waiting.is_overdue(sequence):
            return False
        found = computed_by(sequence, plan.cached_tokens, self.prefilling, self.manager.settings.block_size)
        if found is None:
            return False
        leader, until = found
        self.waiting.park(sequence, leader, until)
        return True

    def _first_in_line(self) -> Sequence | None:
        """Who may be admitted next. Nobody in a step that preempted: the room was made for those who run."""
        seats_taken = self.num_running + len(self.held) + self.branching.reserved_seats
        if self._step.preemptions or seats_taken >= self.max_sequences or not len(self.waiting):
            return None
        first = self.waiting.first()
        return first if first is not None and seats_taken + first.seats <= self.max_sequences else None

    def _plan(self, sequence: Sequence, hold_tokens: int) -> Plan:
        promise, readmission = self.admission.promise(sequence), sequence.preemptions > 0
        forks = 0 if sequence.group is None else self.branching.fork_blocks(sequence, promise)
        started = self.timer() if self.timer is not None else 0.0
        plan = self.manager.plan(sequence.content, hold_tokens, promise, readmission=readmission, fork_blocks=forks)
        if self.timer is not None:
            self._step.lookup_s += self.timer() - started
        return plan

    def _seat(self, sequence: Sequence, plan: Plan) -> None:
        admitted = self.manager.commit(plan)
        self.waiting.admit(sequence)
        sequence.sit_down(admitted.row, admitted.cached_tokens, plan.hold_tokens)
        insort(self.prefilling, sequence, key=lambda other: other.order)
        self.branching.reserved_seats += sequence.seats - 1
        self._step.admissions += 1

    def _compute(self, sequence: Sequence, count: int) -> int:
        """A piece of the prompt; its slots were promised at the admission, so they are there."""
        piece = Piece(sequence, sequence.computed, count)
        if piece.end > sequence.held:
            plan = self.manager.plan_append(np.array([sequence.table_row], np.int32), np.array([piece.end], np.int32))
            if not plan.fits:
                raise InternalError(f"request {sequence.request_id} was promised {piece.end} tokens that do not fit")
            self.manager.commit_append(plan)
            sequence.held = piece.end
        self._step.pieces.append(piece)
        return count

    def _make_room(self) -> None:
        """A decode found no block: finished members of a static batch give way first, then the victim."""
        if self.held:
            self._free_held()
            return
        prefilling, decoding = self.prefilling, self.decoding.sequences
        if self.branching.searches:
            prefilling, decoding = spare_restarted(prefilling, decoding)
        victim = self.victims.choose(prefilling, decoding)
        if self.num_running == len(victim.together):
            self._fail(victim)
        else:
            self._preempt(victim)

    def _preempt(self, victim: Sequence) -> None:
        """By recompute: the blocks go, prompt and generated tokens wait at their old place in line (E41)."""
        together = victim.together
        for sequence in together:
            self._leave(sequence)
            self._stand_up(sequence)
        if victim.group is not None and victim.group.search is not None:
            self.branching.preempted(victim.group)
        together[-1].preemptions += 1
        self._step.preemptions += 1
        self.waiting.push(together[-1])

    def _fail(self, sequence: Sequence) -> None:
        """Alone and still out of blocks: preempting itself would bring it back here for ever (E34)."""
        for member in sequence.together:
            self._leave(member)
            member.error = f"no free block at token {member.length}, and no other sequence to preempt"
            member.finish_reason = "error"
            self._stand_up(member)
            self._step.failed.append(member)

    # After the forward pass.

    def commit(self, step: Schedule, sampled: NDArray[np.int64], now_s: float) -> list[Sequence]:
        """K and V of the step are written and `sampled` has one token for each sequence that samples.

        Returns the sequences that are finished; they hold their blocks until `release`.
        """
        if step.is_empty:
            return []
        self.manager.mark_computed(step.rows, step.ends)
        if step.beams:
            self.branching.advance_beams(step, sampled)
        self.decoding.append(sampled[: step.num_decodes], now_s)
        finished = self.decoding.take_finished(step.num_decodes)
        for piece in step.pieces:
            piece.sequence.advance(piece.count)
            if self.waiting.has_parked:
                self.waiting.progress(piece.sequence, piece.end)
        first: Iterable[tuple[Sequence, int]] = zip(step.samplers, sampled[step.num_decodes :].tolist(), strict=True)
        if any(sequence.group is not None for sequence in step.samplers):
            first = self.branching.first_tokens(step, first)
        for sequence, token in first:
            if self._first_token(sequence, token, now_s):
                finished.append(sequence)
        return finished + self.branching.take_over(step) if step.beams else finished

    def _first_token(self, sequence: Sequence, sampled: int, now_s: float) -> bool:
        """The token that ends a prefill; whether it ends the output too."""
        self.prefilling.remove(sequence)
        self.branching.reserved_seats -= sequence.seats - 1
        sequence.append(sequence.choose(sampled), now_s)
        is_over = sequence.end()
        if not is_over:
            self.decoding.add(sequence)
        return is_over

    def release(self, finished: list[Sequence]) -> None:
        """Blocks of finished sequences go back, in a static batch only when nobody of it runs any more."""
        if self.policy.holds_finished:
            self.held += finished
            self._free_held_if_over()
        else:
            for sequence in finished:
                self._stand_up(sequence)

    def abort(self, sequence: Sequence) -> None:
        """Forget a waiting or running sequence between two steps."""
        if sequence.row is None:
            self.waiting.remove(sequence)
        else:
            self._leave(sequence)
            self._stand_up(sequence)
        self._free_held_if_over()

    def _free_held_if_over(self) -> None:
        if self.num_running == 0:
            self._free_held()

    def _free_held(self) -> None:
        for sequence in self.held:
            self._stand_up(sequence)
        self.held = []

    def _leave(self, sequence: Sequence) -> None:
        if self.waiting.has_parked:
            self.waiting.progress(sequence, None)
        if sequence.is_decoding:
            self.decoding.remove(sequence)
        else:
            self.prefilling.remove(sequence)
            self.branching.reserved_seats -= sequence.seats - 1

    def _stand_up(self, sequence: Sequence) -> None:
        sequence.peak_blocks = max(sequence.peak_blocks, self.manager.peak_blocks(sequence.table_row))
        self.manager.release(sequence.table_row)
        sequence.stand_up()
