"""Decode steps in bulk under the virtual clock: as many at once as nothing can come between. Torch-free.

A run begins when everyone who is seated decodes and nobody can be admitted. It ends with the first sequence that
finishes, before the first step at whose start the next request has arrived, before the blocks run out, and before a
block is published whose content is known already. Within it every step is the last one plus one token a sequence, so
that tokens, blocks, times and records follow in vector operations. All that can be seen of it (records, counters,
outputs, times to the last bit) is as if the steps had been taken one by one; whatever this file does not know makes
it decline, and the plain loop takes the step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from kvbench.cache.decode_run import RunCounts, books_of, commit_run, name_contents, plan_run
from kvbench.costmodel.features import decode_run_reads
from kvbench.engine.copies import Moved
from kvbench.engine.keys import token_keys
from kvbench.engine.policies.admission import GuaranteedNoEvict, MaxUtilization
from kvbench.engine.policies.batch import Chunked, Continuous, Static
from kvbench.engine.schedule import Schedule
from kvbench.engine.step_run import StepRun
from kvbench.engine.tokens import keyed_tokens
from kvbench.engine.waiting import WaitingQueue

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvbench.cache.books import Books
    from kvbench.cache.decode_run import DecodeRun
    from kvbench.cache.types import CacheStats, Int64s
    from kvbench.costmodel.cost import StepCost
    from kvbench.engine.clock import VirtualClock
    from kvbench.engine.recorder import Recorder
    from kvbench.engine.scheduler import Scheduler
    from kvbench.engine.sequence import Sequence
    from kvbench.spec.engine import EngineSettings

MAX_STEPS = 4096
FEW_STEPS = 512
"""So many are priced at once without a look at the next arrival."""
_KNOWN: dict[str, tuple[Any, ...]] = {
    "allocator": ("paged",),
    "prefix_cache": ("none", "hash"),
    "eviction": ("lru",),
    "offload": ("none",),
    "preemption": ("recompute",),
    "order": ("fcfs",),
    "speculation": ("none",),
    "deduplicate_prefixes": (False,),
    "partial_block_reuse": (False,),
    "reblock_to": ("none",),
}
"""Settings under which runs are possible."""


def can_ever_run(settings: EngineSettings, scheduler: Scheduler) -> bool:
    """Whether runs are worth trying under these settings."""
    return (
        all(getattr(settings, name) in values for name, values in _KNOWN.items())
        and type(scheduler.policy) in (Static, Continuous, Chunked)
        and type(scheduler.admission) in (MaxUtilization, GuaranteedNoEvict)
        and type(scheduler.waiting) is WaitingQueue
    )


@dataclass(slots=True)
class DecodeRuns:
    """Takes runs of one engine."""

    scheduler: Scheduler
    recorder: Recorder
    cost: StepCost
    clock: VirtualClock
    vocab_size: int | None
    """None: contents are symbolic and tokens do not matter"""

    def take(self, until_s: float) -> tuple[StepRun, list[Sequence]] | None:
        """Steps that start before `until_s`, and the sequences that finished with the last of them; None when the
        next step is one for the plain loop."""
        decoding, books = self.scheduler.decoding, books_of(self.scheduler.manager)
        if books is None or self.scheduler.prefilling or not len(decoding) or decoding.has_stop_tokens:
            return None
        if any(sequence.group is not None for sequence in decoding.sequences):
            return None
        is_open, watched = self._newcomer(books)
        if is_open:
            return None
        known = decoding.lengths().astype(np.int64)
        ends = self._ends(known, int(decoding.tokens_left().min()), until_s)
        run = plan_run(books, decoding.rows().astype(np.int64), known, len(ends) - 1)
        if run is None:
            return None
        tokens = self._tokens(run.steps)
        if not self._name(books, run, tokens, watched):
            return None
        return self._carry_out(run, tokens[:, : run.steps], ends[: run.steps + 1])

    def _newcomer(self, books: Books) -> tuple[bool, bytes | None]:
        """Whether somebody may be admitted now, and the key whose publication could make that possible later.

        Who does not fit now fits even less with every block that decoding takes, unless a longer hit is published."""
        scheduler = self.scheduler
        budget = scheduler.max_batch_tokens
        if type(scheduler.policy) is Chunked:
            budget -= len(scheduler.decoding)
            if budget < 0:
                return True, None
        seats = scheduler.num_running + len(scheduler.held)
        no_door = type(scheduler.policy) is Static or seats >= scheduler.max_sequences or budget == 0
        first = None if no_door else scheduler.waiting.first()
        if first is None:
            return False, None
        hold = min(first.length, budget) if type(scheduler.policy) is Chunked else first.length
        promise = scheduler.admission.promise(first)
        if first.group is not None:
            return True, None
        plan = scheduler.manager.plan(first.content, hold, promise, readmission=first.preemptions > 0)
        if plan.fits or not books.caching:
            return plan.fits, None
        blocks = (first.length - 1) // books.block_size
        found = plan.cached_tokens // books.block_size
        return False, first.content.keys(books.chain, blocks)[found] if found < blocks else None

    def _ends(self, known: Int64s, most: int, until_s: float) -> NDArray[np.float64]:
        """Now, and the end of every step that starts before `until_s`, added up one by one as the clock does."""
        now = self.clock.now()
        enough = MAX_STEPS
        if until_s < np.inf and most > FEW_STEPS:
            first_s = float(self.cost.decode_run_s(known, 1)[0])
            enough = min(int((until_s - now) / first_s * 1.05), MAX_STEPS) + 2
        seconds = self.cost.decode_run_s(known, max(1, min(most, enough, MAX_STEPS)))
        ends = np.add.accumulate(np.concatenate([[now], seconds]))
        return ends[: int(np.searchsorted(ends[:-1], until_s)) + 1]

    def _tokens(self, steps: int) -> Int64s:
        """`[sequences, steps]` of output tokens."""
        decoding = self.scheduler.decoding
        if self.vocab_size is None:
            return np.zeros((len(decoding), steps), np.int64)
        indices = decoding.output_tokens()[:, np.newaxis] + np.arange(steps)
        keys = token_keys(decoding.random_keys()[:, np.newaxis], indices)
        tokens = keyed_tokens(keys, self.vocab_size)
        for at, (sequence, first) in enumerate(zip(decoding.sequences, indices[:, 0].tolist(), strict=True)):
            if sequence.forced is not None:
                tokens[at] = sequence.forced[first : first + steps]
        return tokens

    def _name(self, books: Books, run: DecodeRun, tokens: Int64s, watched: bytes | None) -> bool:
        """Append the tokens to the sequences and cut the run where a block's content is known already; whether
        anything is left of it."""
        contents = [sequence.content for sequence in self.scheduler.decoding.sequences]
        planned = run.steps
        for content, own in zip(contents, tokens, strict=True):
            content.extend(own)
        name_contents(books, run, contents, watched)
        for content in contents if run.steps < planned else ():
            content.truncate(content.length - planned + run.steps)
        return run.steps > 0

    def _carry_out(self, run: DecodeRun, tokens: Int64s, ends: NDArray[np.float64]) -> tuple[StepRun, list[Sequence]]:
        scheduler, decoding = self.scheduler, self.scheduler.decoding
        schedule = Schedule(num_decodes=len(decoding))
        schedule.seal(decoding)
        active, before = scheduler.num_running, scheduler.manager.stats()
        counts = commit_run(scheduler.manager, run, [sequence.content for sequence in decoding.sequences])
        decoding.advance(tokens[:, -1], ends[1:].tolist())
        self.clock.wait_until(float(ends[-1]))
        finished = decoding.take_finished(len(decoding))
        base = self.recorder.step(schedule, scheduler.manager.stats(), Moved(), (float(ends[0]), float(ends[1])))
        base.active_sequences, base.waiting_sequences = active, len(scheduler.waiting)
        steps = StepRun(base, self._columns(run, counts, before, base.step, ends))
        self.recorder.steps += run.steps - 1
        return steps, finished

    def _columns(
        self, run: DecodeRun, counts: RunCounts, before: CacheStats, first: int, ends: NDArray[np.float64]
    ) -> dict[str, NDArray[Any]]:
        block_size = self.scheduler.manager.settings.block_size
        offsets = np.arange(run.steps)
        used = before.blocks_used + counts.taken
        return {
            "step": first + offsets,
            "t_s": ends[:-1],
            "duration_s": ends[1:] - ends[:-1],
            "context_tokens": int(run.known.sum()) + len(run.known) * offsets,
            "kv_bytes_used": used * self.recorder.block_bytes,
            "kv_blocks_free": np.maximum(before.blocks_free - counts.taken, 0),
            "live_cached_tokens": counts.live_cached * block_size,
            "internal_slots": counts.tail_slots,
            "reserved_slots": counts.promised * block_size,
            "evictions": counts.evictions,
            **self._reads(run),
        }

    def _reads(self, run: DecodeRun) -> dict[str, NDArray[np.int64]]:
        """KV tokens and block-table entries of each step, summed over the layers."""
        windows, layers = self.recorder.model
        sums = {"decode_reads": np.zeros(run.steps, np.int64), "block_reads": np.zeros(run.steps, np.int64)}
        for window, count in zip(windows, layers, strict=True):
            context, blocks = decode_run_reads(run.known, run.steps, window, self.recorder.block_size)
            sums["decode_reads"] += count * context
            sums["block_reads"] += count * blocks
        return sums
