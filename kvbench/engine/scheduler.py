"""Who runs in the next step: seats, moves for the batch policies, preemption, and the books after the step.

A sequence is in exactly one place: `waiting`, `swapped` (waiting, its KV on the swap area), `prefilling`, `decoding`,
`held` (finished, blocks kept by a static batch) or gone. One that prefills may be *loading*: it has a row and blocks,
some of which are still on their way, and no seat; nothing of it is scheduled.
"""

from __future__ import annotations

import sys
from bisect import bisect_left
from typing import TYPE_CHECKING

import numpy as np

from kvbench.engine.branching import Branching
from kvbench.engine.decodes import DecodeSet
from kvbench.engine.policies.registry import admission_policy, batch_policy, order_of, preemption_policy, victim_policy
from kvbench.engine.preempting import Preempting
from kvbench.engine.schedule import Piece, Schedule
from kvbench.engine.seating import Seating
from kvbench.engine.sequence import Mark
from kvbench.engine.speculation.acceptance import accept
from kvbench.engine.waiting import WaitingQueue
from kvbench.errors import InternalError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from kvbench.cache.types import AppendPlan, CacheManager
    from kvbench.engine.job import Job
    from kvbench.engine.sequence import Sequence
    from kvbench.engine.speculation.budget import Speculation
    from kvbench.spec.engine import EngineSettings


class Scheduler:
    """Seats over one cache manager; torch-free."""

    def __init__(self, manager: CacheManager, settings: EngineSettings) -> None:
        self.manager = manager
        self.settings = settings
        self.policy = batch_policy(settings.batch_policy)
        self.admission = admission_policy(manager, settings)
        self.victims = victim_policy(manager, settings)
        self.preemption = preemption_policy(settings.preemption)
        self.overlaps = settings.promotion == "overlapped"
        self.max_sequences = settings.max_sequences
        self.max_batch_tokens = settings.max_batch_tokens
        is_bounded = settings.order != "fcfs" or settings.deduplicate_prefixes
        limit = settings.starvation_limit if is_bounded else sys.maxsize
        self.waiting = WaitingQueue(order_of(settings.order, manager), limit)
        self.swapped: list[Sequence] = []
        self.prefilling: list[Sequence] = []
        self.decoding = DecodeSet(settings.max_sequences)
        self.held: list[Sequence] = []
        self.branching = Branching(self)
        self.preempting = Preempting(self)
        self.seating = Seating(self)
        self.speculation: Speculation | None = None
        self.step = Schedule()

    @property
    def num_running(self) -> int:
        return len(self.prefilling) + len(self.decoding)

    @property
    def has_work(self) -> bool:
        return self.num_running > 0 or self.num_waiting > 0

    @property
    def num_waiting(self) -> int:
        return len(self.waiting) + len(self.swapped)

    @property
    def num_loading(self) -> int:
        """Of those that run."""
        return sum(sequence.is_loading for sequence in self.prefilling) if self.overlaps else 0

    def reason_to_reject(self, job: Job) -> str | None:
        """Why the job can never be served, None when it can (E26); exactly fitting is fitting (E27)."""
        limit = self.manager.settings.max_context
        asked = f"{len(job.prompt)} input + {job.max_tokens} output tokens"
        if job.total_tokens > limit:
            return f"{asked} exceed the maximum context of {limit}"
        if not self.manager.can_ever_fit(job.slots_needed):
            sizes = self.manager.settings
            return f"{asked} can never fit into the pool of {sizes.num_blocks} blocks of {sizes.block_size} tokens"
        if job.forced is not None and self.speculation is not None and self.speculation.guesses:
            return "no draft can guess forced outputs: let the model choose, or serve without speculation"
        return self.branching.reason_to_reject(job) if job.width > 1 else None

    def add(self, sequence: Sequence) -> None:
        self.waiting.push(sequence)
        if sequence.group is not None:
            self.branching.added(sequence.group)

    def schedule(self, now_s: float, after: Schedule | None = None) -> Schedule:
        """Fill one step by the batch policy; slots of all its tokens are allocated when this returns. `after` is an
        earlier attempt at the same step, in which nothing could be computed."""
        self.step = step = Schedule(now_s=now_s)
        if after is not None:
            step.admissions, step.preemptions = after.admissions, after.preemptions
        self.waiting.order.begin_step()
        if self.overlaps:
            self.seating.seat_arrived()
        self.policy.fill(self, self.max_batch_tokens)
        if step.is_empty and self.has_work and not step.failed and not self._room_is_coming():
            raise InternalError(f"{self.num_running} sequences run and {self.num_waiting} wait, yet none can proceed")
        self.admission.observe(step, self)
        self._seal()
        for piece in step.pieces:
            if piece.sequence.first_scheduled_s is None:
                piece.sequence.first_scheduled_s = now_s
        return step

    def _seal(self) -> None:
        self.step.seal(self.decoding)
        if self.branching.searches:
            self.branching.note_beams(self.step)

    # Moves of the batch policies; each returns the tokens that it has put into the step.

    def decode(self, limit: int | None = None) -> int:
        """One token for each of the first `limit` decoding sequences; makes room by preemption where there is none."""
        while len(self.decoding) > 0:
            if self.branching.searches:
                limit = self.branching.whole_groups(limit)
            if self.speculation is not None and (tokens := self._decode_ahead(self.speculation, limit)):
                return tokens
            rows, lengths = self.decoding.rows(limit), self.decoding.lengths(limit)
            plan = self.manager.plan_append(rows, lengths)
            if plan.fits:
                self.manager.commit_append(plan)
                self.step.num_decodes = len(rows)
                return len(rows)
            deferred = self.manager.deferred_blocks()
            if deferred and (plan.shortfall_blocks <= deferred or self.num_running == 1):
                return self._decode_what_fits(len(rows))
            self.preempting.make_room()
        return 0

    def _decode_what_fits(self, limit: int) -> int:
        """Room is on its way, so nobody more is preempted for it (E39): the first arrived who fit without it."""
        count = bisect_left(range(1, limit), True, key=lambda n: not self._growth(n).fits)
        if self.branching.searches:
            count = self.branching.whole_groups_within(count)
        if count:
            self.manager.commit_append(self._growth(count))
            self.step.num_decodes = count
            if self.speculation is not None:
                self.step.drafts = self.speculation.no_drafts(self.decoding, count)
        return count

    def _growth(self, count: int) -> AppendPlan:
        return self.manager.plan_append(self.decoding.rows(count), self.decoding.lengths(count))

    def _decode_ahead(self, speculation: Speculation, limit: int | None) -> int:
        """The decodes with drafts, or without any where those do not fit; 0 when nothing fits."""
        rows, lengths = self.decoding.rows(limit), self.decoding.lengths(limit)
        for propose in (speculation.drafts, speculation.no_drafts):
            drafts = propose(self.decoding, limit)
            plan = self.manager.plan_append(rows, lengths + drafts.counts)
            if plan.fits:
                self.manager.commit_append(plan)
                self.step.num_decodes, self.step.drafts = len(rows), drafts
                return len(rows) + drafts.total
        return 0

    def continue_chunks(self, budget: int) -> int:
        """Prefills in flight go on by what is left of the budget."""
        spent = 0
        for sequence in self.prefilling:
            if spent == budget:
                break
            if sequence.is_loading:
                continue
            spent += self._compute(sequence, min(sequence.missing, budget - spent))
        return spent

    def continue_whole(self, budget: int) -> int:
        """Seated prompts are computed whole while the budget lasts, at least one."""
        spent = 0
        for sequence in self.prefilling:
            if sequence.is_loading:
                continue
            if spent > 0 and spent + sequence.missing > budget:
                break
            spent += self._compute(sequence, sequence.missing)
        return spent

    def admit_chunks(self, budget: int) -> int:
        """New prompts begin by what is left of the budget."""
        spent = 0
        while spent < budget and (found := self.seating.candidate(budget - spent)) is not None:
            sequence, plan = found
            self.seating.seat(sequence, plan)
            if not sequence.is_loading:
                spent += self._compute(sequence, min(sequence.missing, budget - spent))
        return spent

    def admit_whole(self, budget: int, spent: int = 0) -> int:
        """New prompts are computed whole while the budget lasts, at least one. Cached tokens cost no budget (E15)."""
        before = spent
        while (found := self.seating.candidate()) is not None:
            sequence, plan = found
            tokens = sequence.length - plan.cached_tokens
            if spent > 0 and spent + tokens > budget:
                break
            self.seating.seat(sequence, plan)
            if not sequence.is_loading:
                spent += self._compute(sequence, tokens)
        return spent - before

    def seat_batch(self) -> None:
        """Everyone first in line who fits takes a seat, blocks for the whole prompt included."""
        while (found := self.seating.candidate()) is not None:
            self.seating.seat(*found)

    def _compute(self, sequence: Sequence, count: int) -> int:
        """A piece of the prompt; its slots were promised at the admission, so they are there."""
        piece = Piece(sequence, sequence.computed, count)
        if piece.end > sequence.held:
            plan = self.manager.plan_append(np.array([sequence.table_row], np.int32), np.array([piece.end], np.int32))
            if not plan.fits:
                raise InternalError(f"request {sequence.request_id} was promised {piece.end} tokens that do not fit")
            self.manager.commit_append(plan)
            sequence.held = piece.end
        self.step.pieces.append(piece)
        return count

    def _room_is_coming(self) -> bool:
        """Copies are under way: somebody's blocks arrive, or blocks that were given up come back."""
        return self.num_loading > 0 or self.manager.deferred_blocks() > 0

    def fall_back(self, rows: list[int]) -> None:
        """Blocks that these rows were to read did not come. Their sequences leave the step and wait at their old place;
        when they are admitted again, they find what is left and compute the rest."""
        for sequence in [*self.prefilling, *self.decoding.sequences]:
            if sequence.row in rows:
                for one in sequence.together:
                    self.step.drop(one)
                self.preempting.requeue(sequence)
        self._free_held_if_over()
        self._seal()

    # After the forward pass.

    def commit(self, step: Schedule, sampled: NDArray[np.int64], now_s: float) -> list[Sequence]:
        """K and V of the step are written and `sampled` has one token for each sequence that samples.

        Returns the sequences that are finished; they hold their blocks until `release`.
        """
        self.step = Schedule()
        if step.is_empty:
            return []
        if step.drafts is not None:
            others = accept(step, sampled, now_s, self.decoding, self.manager, step.drafts)
        else:
            self.manager.mark_computed(step.rows, step.ends)
            if step.beams:
                self.branching.advance_beams(step, sampled)
            self.decoding.append(sampled[: step.num_decodes], now_s)
            others = sampled[step.num_decodes :]
        finished = self.decoding.take_finished(step.num_decodes)
        for piece in step.pieces:
            piece.sequence.advance(piece.count)
            piece.sequence.marks.append(Mark("piece", step.now_s, piece.count))
            if self.waiting.has_parked:
                self.waiting.progress(piece.sequence, piece.end)
        first: Iterable[tuple[Sequence, int]] = zip(step.samplers, others.tolist(), strict=True)
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
                self.stand_up(sequence)

    def abort(self, sequence: Sequence) -> None:
        """Forget a waiting or running sequence between two steps."""
        if sequence.swapped is not None:
            self.swapped.remove(sequence)
            self.manager.give_up_swapped(sequence.swapped)
            sequence.swapped = None
        elif sequence.row is None:
            self.waiting.remove(sequence)
        else:
            self.leave(sequence)
            self.stand_up(sequence)
        self._free_held_if_over()

    def _free_held_if_over(self) -> None:
        if self.num_running == 0:
            self.free_held()

    def free_held(self) -> None:
        for sequence in self.held:
            self.stand_up(sequence)
        self.held = []

    def leave(self, sequence: Sequence) -> None:
        if self.waiting.has_parked:
            self.waiting.progress(sequence, None)
        if sequence.is_decoding:
            self.decoding.remove(sequence)
        else:
            self.prefilling.remove(sequence)
            self.branching.reserved_seats -= sequence.seats - 1

    def stand_up(self, sequence: Sequence) -> None:
        if sequence.group is not None:
            self.branching.note_blocks(sequence.group)
        sequence.peak_blocks = max(sequence.peak_blocks, self.manager.peak_blocks(sequence.table_row))
        self.manager.release(sequence.table_row)
        sequence.stand_up()
