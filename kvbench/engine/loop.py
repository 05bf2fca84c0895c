"""The engine's loop: schedule → prepare batch → forward → sample → commit → release.

Torch-free: whatever stands behind `Runner` computes the tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from kvbench.costmodel.features import ONE_LAYER, LayerWindows
from kvbench.engine.clock import WallClock
from kvbench.engine.copies import Moved
from kvbench.engine.copying import Copying
from kvbench.engine.group import sequence_of
from kvbench.engine.invariants import check_scheduler
from kvbench.engine.keys import token_keys
from kvbench.engine.prepare import prepare_batch
from kvbench.engine.reblocking import NoRoomError, ReblockRecord, reblock
from kvbench.engine.recorder import Recorder, group_record, rejected_record, request_record
from kvbench.engine.scheduler import Scheduler
from kvbench.engine.speculation.budget import Speculation
from kvbench.errors import InternalError, UsageError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from numpy.typing import NDArray

    from kvbench.cache.transfers import Transfers
    from kvbench.cache.types import CacheManager, Int64s
    from kvbench.engine.batch import StepBatch
    from kvbench.engine.clock import Clock
    from kvbench.engine.copies import Outcome
    from kvbench.engine.job import Job
    from kvbench.engine.sampling import SamplingParams
    from kvbench.engine.schedule import Candidates, Schedule
    from kvbench.engine.sequence import Sequence
    from kvbench.engine.speculation.drafter import Drafter
    from kvbench.engine.telemetry import RequestRecord, StepRecord
    from kvbench.spec.engine import EngineSettings


_ATTEMPTS = 8
"""Schedules in a row in which nothing can be computed and no copy is under way: one follows a copy that failed"""


class Runner(Protocol):
    """Where KV and weights live."""

    def start(self, transfers: Transfers) -> Outcome:
        """Begin the block copies, in their order; returns those that have ended. `copies.py` says what must have."""
        ...

    def poll(self, *, wait: bool = False) -> Outcome:
        """Copies that ended since the last call; with `wait`, at least one: the loop measures how long that takes."""
        ...

    def forward(self, batch: StepBatch) -> Any:
        """Write K and V of the step and return logits `[n, vocab]` of `batch.logit_rows`."""
        ...

    def sample(self, logits: Any, params: list[SamplingParams], keys: Int64s) -> Int64s:
        """One token per row of the logits, `[n]`; `keys` are its random numbers."""
        ...

    def candidates(self, logits: Any, rows: Int64s, count: int) -> Candidates:
        """Token ids and log-probabilities (over the whole vocabulary, float64) of the `count` likeliest tokens of these
        rows of the logits, each `[len(rows), count]`, likeliest first. Only beam search asks."""
        ...

    def reset(self) -> None:
        """Forget the stored KV."""
        ...


class EngineLoop:
    """Jobs in, tokens and records out; one `step` is one iteration."""

    def __init__(
        self,
        manager: CacheManager,
        settings: EngineSettings,
        runner: Runner,
        *,
        block_bytes: int,
        vocab_size: int,
        clock: Clock | None = None,
        drafter: Drafter | None = None,
        check: bool = False,
        model: LayerWindows = ONE_LAYER,
    ) -> None:
        """`drafter` is asked for `draft_tokens` tokens a step; `check` calls `check_invariants` after every step.
        `model`: whose layers attend, for the counts of a step."""
        self.manager = manager
        self.settings = settings
        self.runner = runner
        self.vocab_size = vocab_size
        self.clock: Clock = clock or WallClock()
        self.scheduler = Scheduler(manager, settings)
        self.scheduler.seating.timer = self.clock.now
        if drafter is not None:
            self.scheduler.speculation = Speculation(drafter, settings.draft_tokens)
        is_blocking = settings.promotion == "blocking"
        self.copying = Copying(self.scheduler, runner, self.clock, is_blocking=is_blocking)
        self._recorder = Recorder(block_bytes, manager.settings.block_size, model)
        self._check = check
        self._live: dict[int, Sequence] = {}
        self._finished: list[RequestRecord] = []
        self._outputs: dict[int, list[list[int]]] = {}
        self._in_step = False
        self._given_up: list[int] = []
        """Aborted while a step was in flight"""
        self.reblocks: list[ReblockRecord] = []
        """Since the start or the last reset"""
        self._reblock_due = _size_to_come(settings)
        self._refusals = self._ended = 0

    @property
    def steps(self) -> int:
        """Steps since the start or the last reset."""
        return self._recorder.steps

    @property
    def disk_error(self) -> str | None:
        """Why the disk tier was switched off; None while it serves."""
        return self.copying.disk_error

    @property
    def has_work(self) -> bool:
        return self.scheduler.has_work

    def add(self, job: Job) -> None:
        """Queue a job; one that can never be served is finished at once as `rejected`, with the reason."""
        if job.request_id in self._live:
            raise UsageError(f"request {job.request_id} is already being served", hint="give every job its own id")
        if job.prompt.min() < 0 or job.prompt.max() >= self.vocab_size:
            raise UsageError(
                f"request {job.request_id}: the prompt has token ids outside the vocabulary of {self.vocab_size}",
                hint=f"token ids run from 0 to {self.vocab_size - 1}",
            )
        if job.beams is not None and max(2, 1 + len(job.stop_tokens)) * job.width > self.vocab_size:
            raise UsageError(
                f"request {job.request_id}: {job.width} beams need a larger vocabulary than {self.vocab_size}",
                hint="use fewer beams or fewer stop tokens",
            )
        reason = self.scheduler.reason_to_reject(job)
        if reason is not None:
            self._finished.append(rejected_record(job.request_id, job.arrival_s, len(job.prompt), reason, job.priority))
            return
        self._live[job.request_id] = sequence = sequence_of(job)
        self.scheduler.add(sequence)

    def step(self) -> StepRecord | None:
        """One iteration; None when there is nothing to do."""
        if not self.has_work:
            return None
        if self._reblock_due is not None and self._ended >= self.settings.reblock_after:
            self._reblock_when_it_fits(self._reblock_due)
        self._in_step = True
        try:
            record = self._step()
        finally:
            self._in_step = False
        while self._given_up:
            request_id = self._given_up.pop()
            if request_id in self._live:
                self.abort(request_id)
        return record

    def _step(self) -> StepRecord:
        started, moved = self.clock.now(), Moved()
        schedule = self._schedule(started, moved)
        active = self.scheduler.num_running
        tokens = self._compute(schedule)
        finished = self.scheduler.commit(schedule, tokens, self.clock.now())
        stats = self.manager.stats()
        self._close(finished, schedule.failed)
        ended = self.clock.now()
        if schedule.prefill_tokens:
            self.scheduler.preemption.saw_step(int(schedule.counts.sum()), ended - started - moved.promotion_stall_s)
        record = self._recorder.step(schedule, stats, moved, (started, ended))
        record.active_sequences, record.waiting_sequences = active, self.scheduler.num_waiting
        return record

    def advance(self, until_s: float) -> Collection[StepRecord]:
        """One step; an engine whose clock is virtual may take several at once, none of which starts at or after
        `until_s` but the first. Empty when there is nothing to do."""
        record = self.step()
        return () if record is None else (record,)

    def reblock(self, block_size: int) -> ReblockRecord:
        """Go on with blocks of another size, between two steps. Nothing that runs loses a token; of the prefix cache
        stays what fills whole new blocks and has room. `NoRoomError` when what runs does not fit the new blocks,
        `UsageError` or `CannotRunError` when it can never be; nothing has changed then."""
        record = reblock(self.manager, self.runner, block_size, self.clock, self.steps, self._refusals)
        self._recorder.block_bytes, self._recorder.block_size = record.block_bytes, record.block_size
        self.reblocks.append(record)
        if self._check:
            self.check_invariants()
        return record

    def _reblock_when_it_fits(self, block_size: int) -> None:
        """By the settings; while there is no room, once more whenever a request has ended."""
        try:
            self.reblock(block_size)
        except NoRoomError:
            self._refusals += 1
            self._ended = self.settings.reblock_after - 1
        else:
            self._reblock_due = None

    def _schedule(self, now_s: float, moved: Moved) -> Schedule:
        """A step in which something can be computed, its block copies under way and what it reads in its place. Waits
        for copies only when there is nothing else to do."""
        copying = self.copying
        copying.poll(moved)
        schedule = self.scheduler.schedule(now_s)
        begun, attempts = copying.begin(moved), 0
        while schedule.is_empty and not schedule.failed and self.has_work:
            attempts = 0 if begun or copying.under_way else attempts + 1
            if attempts > _ATTEMPTS:
                raise InternalError("sequences wait for block copies, and none is under way")
            if copying.under_way:
                copying.wait(moved)
            schedule = self.scheduler.schedule(self.clock.now(), after=schedule)
            begun = copying.begin(moved)
        return schedule

    def settle(self) -> None:
        """Carry out what is decided and wait for all copies under way, those of requests that are gone included."""
        self.copying.finish()

    def _compute(self, schedule: Schedule) -> NDArray[np.int64]:
        """The step's sampled tokens, in the order of `schedule.sampling_sequences`."""
        if schedule.is_empty:
            return np.empty(0, np.int64)
        if schedule.drafts is not None and self.scheduler.speculation is not None:
            self.scheduler.speculation.drafter.draft(schedule, self.manager)
        batch = prepare_batch(schedule, self.manager)
        logits = self.runner.forward(batch)
        for beams in schedule.beams:
            rows = np.arange(beams.first, beams.first + beams.rows)
            schedule.candidates.append(self.runner.candidates(logits, rows, beams.search.candidates))
        params = [sequence.job.sampling for sequence in schedule.sampling_sequences]
        return self.runner.sample(logits, params, token_keys(schedule.random_keys, schedule.output_indices))

    def _close(self, finished: list[Sequence], failed: Iterable[Sequence] = ()) -> None:
        """The end of a step, or of a run of them: blocks of finished sequences go back."""
        self.scheduler.release(finished)
        self._finish([*failed, *finished])
        if self._check:
            self.check_invariants()

    def _finish(self, sequences: list[Sequence]) -> None:
        """A request ends with the last of its sequences."""
        for sequence in sequences:
            group = sequence.group
            if group is None:
                self._end(sequence.request_id, request_record(sequence), [sequence.output])
            elif group.is_over and sequence.request_id in self._live:
                self.scheduler.branching.ended(group)
                self._end(sequence.request_id, group_record(group), group.outputs())

    def _end(self, request_id: int, record: RequestRecord, outputs: list[list[int]]) -> None:
        del self._live[request_id]
        self._ended += 1
        self._finished.append(record)
        self._outputs[request_id] = outputs

    def abort(self, request_id: int) -> None:
        """Give up a job: all it holds is released, its record says `error`. While a step is in flight the step is
        carried out first, and a token that it produces still counts (E40)."""
        sequence = self._live.get(request_id)
        if sequence is None:
            raise UsageError(f"request {request_id} is not being served", hint="it never came, or has finished")
        if self._in_step:
            self._given_up.append(request_id)
            return
        for member in [sequence] if sequence.group is None else sequence.group.active:
            if member.finish_reason is None:
                self.scheduler.abort(member)
                member.finish_reason, member.error = "error", "aborted"
        self._finish([sequence])

    def abort_all(self) -> None:
        for request_id in list(self._live):
            self.abort(request_id)

    def take_finished(self) -> list[RequestRecord]:
        """Records of requests that ended since the last call."""
        finished, self._finished = self._finished, []
        return finished

    def take_outputs(self) -> dict[int, list[int]]:
        """Output tokens of requests that ended since the last call, of several outputs the first; a rejected request
        has none."""
        return {request_id: outputs[0] if outputs else [] for request_id, outputs in self.take_all_outputs().items()}

    def take_all_outputs(self) -> dict[int, list[list[int]]]:
        """All samples of each of those requests, or the hypotheses of its beam search, best first. Takes what
        `take_outputs` would take."""
        outputs, self._outputs = self._outputs, {}
        return outputs

    def reset(self) -> None:
        """Drop cached KV, counters and untaken results; the clock restarts. Nothing may be running."""
        if self.has_work:
            raise UsageError("the engine is still serving", hint="finish or abort its jobs before reset()")
        self.settle()
        self.manager.reset()
        self.runner.reset()
        self._restore_block_size()
        self._recorder.reset()
        self.take_finished()
        self.take_outputs()
        self.clock.restart()

    def recount(self) -> None:
        """Count steps, counters and time from here; what is cached stays. Nothing may be running."""
        if self.has_work:
            raise UsageError("the engine is still serving", hint="finish or abort its jobs before recount()")
        self.settle()
        self._restore_block_size()
        self._recorder.restart(self.manager.stats())
        self.take_finished()
        self.take_outputs()
        self.clock.restart()

    def _restore_block_size(self) -> None:
        if self.reblocks and self.manager.settings.block_size != self.settings.block_size:
            self.reblock(self.settings.block_size)
        self.reblocks, self._reblock_due = [], _size_to_come(self.settings)
        self._refusals = self._ended = 0

    def check_invariants(self) -> None:
        """Raise `InternalError` when the books of the cache or of the scheduler do not add up."""
        self.manager.check_invariants()
        check_scheduler(self.scheduler)


def _size_to_come(settings: EngineSettings) -> int | None:
    return None if settings.reblock_to == "none" else settings.reblock_to
