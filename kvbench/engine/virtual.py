"""The engine without a device: the same scheduler and cache, time from a cost model, tokens from their keys.

Nothing is stored, so nothing can be read back wrong: what the virtual clock shows is where time and blocks go. The
tokens that it samples say nothing about a model; workloads with forced outputs do not use them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from kvbench.cache.manager import make_manager
from kvbench.cache.transfers import ARRIVALS, COPY_KINDS
from kvbench.costmodel.features import layer_windows
from kvbench.costmodel.model import CostModel
from kvbench.engine.cache_settings import cache_settings
from kvbench.engine.clock import VirtualClock
from kvbench.engine.copies import Outcome
from kvbench.engine.decode_run import DecodeRuns, can_ever_run
from kvbench.engine.keys import token_keys
from kvbench.engine.loop import EngineLoop
from kvbench.engine.memory import plan_sizes
from kvbench.engine.sampling import uniforms
from kvbench.engine.speculation.geometry import draft_kv_dtype
from kvbench.engine.speculation.virtual import VirtualDrafter, draft_geometry
from kvbench.engine.symbolic import check_symbolic
from kvbench.engine.tokens import keyed_tokens
from kvbench.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Collection

    from kvbench.cache.transfers import Transfers
    from kvbench.cache.types import Int64s
    from kvbench.costmodel.cost import StepCost
    from kvbench.engine.batch import StepBatch
    from kvbench.engine.sampling import SamplingParams
    from kvbench.engine.schedule import Candidates, Schedule
    from kvbench.engine.telemetry import StepRecord
    from kvbench.geometry.model import ModelGeometry
    from kvbench.spec.engine import EngineSettings


_CHANNELS = {"store": "down", "promote": "up", "swap_in": "up", "demote": "disk", "load": "disk"}
"""Kinds of copy that go on while a step computes → what carries them"""
_FOLLOWS: dict[str, tuple[str, ...]] = {"demote": ("store",), "promote": ("store",), "copy": ARRIVALS}
"""Kinds of copy → those that must have filled their source before"""


class VirtualRunner:
    """Every call advances the clock by what the cost model says of it."""

    def __init__(
        self, cost: StepCost, clock: VirtualClock, vocab_size: int, draft_cost: StepCost | None = None
    ) -> None:
        """`draft_cost`: of a draft model that computes every prompt as well."""
        self.cost = cost
        self.draft_cost = draft_cost
        self.clock = clock
        self.vocab_size = vocab_size
        self._under_way: list[tuple[float, str, list[int], list[int]]] = []
        """When each ends, and what it copies"""
        self._free_at: dict[str, float] = {}
        self._last_s = 0.0
        self.reset()

    def start(self, transfers: Transfers) -> Outcome:
        """Copies of `_CHANNELS` go on while steps compute, one after another on each channel; the step waits for the
        others here, and in `poll` for those that it needs."""
        outcome = Outcome()
        self._notice_a_restart()
        for kind in COPY_KINDS:
            here, there = transfers.pairs(kind)
            if not here:
                continue
            seconds, channel = self.cost.copies_s(kind, len(here)), _CHANNELS.get(kind)
            if kind in _FOLLOWS:
                self._wait_for(_FOLLOWS[kind], here)
            if channel is None:
                self.clock.advance(seconds)
                outcome.done.add(kind, here, there)
            else:
                ends = max(self._free_at.get(channel, 0.0), self.clock.now()) + seconds
                self._free_at[channel] = ends
                self._under_way.append((ends, kind, here, there))
        return outcome

    def poll(self, *, wait: bool = False) -> Outcome:
        outcome = Outcome()
        self._notice_a_restart()
        if wait and self._under_way:
            self.clock.wait_until(min(copy[0] for copy in self._under_way))
        for _, kind, here, there in (copy for copy in self._under_way if copy[0] <= self.clock.now()):
            outcome.done.add(kind, here, there)
        self._under_way = [copy for copy in self._under_way if copy[0] > self.clock.now()]
        return outcome

    def _wait_for(self, kinds: tuple[str, ...], blocks: list[int]) -> None:
        """Until nothing of these kinds is on its way into one of these blocks."""
        for ends, kind, _, there in self._under_way:
            if kind in kinds and not set(blocks).isdisjoint(there):
                self.clock.wait_until(ends)

    def _notice_a_restart(self) -> None:
        """A clock that runs from 0 again: what was under way has ended long ago."""
        now = self.clock.now()
        if now < self._last_s:
            self._free_at.clear()
            self._under_way = [(now, *copy[1:]) for copy in self._under_way]
        self._last_s = now

    def forward(self, batch: StepBatch) -> int:
        """The number of rows that are sampled."""
        starts = batch.context_lengths - batch.query_lengths
        rows, n = len(batch.logit_rows), batch.num_decodes
        if self.draft_cost is not None and len(starts) > n:
            prompts = self.draft_cost.features(starts[n:], batch.query_lengths[n:], 0, 0)
            self.clock.advance(self.draft_cost.step_s(prompts))
        self.clock.advance(self.cost.step_s(self.cost.features(starts, batch.query_lengths, batch.num_decodes, rows)))
        return rows

    def sample(self, logits: int, params: list[SamplingParams], keys: Int64s) -> Int64s:
        return keyed_tokens(keys, self.vocab_size)

    def candidates(self, logits: int, rows: Int64s, count: int) -> Candidates:
        """Drawn by the number of draws so far: which beams live on says nothing about a model."""
        draws = uniforms(self._draws + np.arange(len(rows) * count)).reshape(len(rows), count)
        self._draws += draws.size
        first = (draws[:, :1] * self.vocab_size).astype(np.int64)
        return (first + np.arange(count)) % self.vocab_size, -np.cumsum(draws, axis=1)

    def reset(self) -> None:
        self._under_way, self._free_at, self._last_s = [], {}, 0.0
        self._draws = 0


class VirtualEngine(EngineLoop):
    """An engine whose time is predicted. KV memory is that of the settings, in bytes."""

    def __init__(
        self,
        geometry: ModelGeometry,
        settings: EngineSettings,
        cost: StepCost,
        *,
        weight_dtype: str,
        max_context: int | None = None,
        in_runs: bool = True,
        symbolic: bool = False,
        check: bool = False,
    ) -> None:
        """Raises `CannotRunError` with the arithmetic when the memory cannot hold one sequence, `UsageError` when the
        cost has no price for a draft that the settings ask for. Without `in_runs` every
        step is taken by itself, which gives the same and takes longer. `symbolic`: jobs are `SymbolicJob`s."""
        if symbolic:
            check_symbolic(geometry, settings)
        self.cost, self.symbolic = cost, symbolic
        self.sizes = plan_sizes(geometry, settings, None, max_context, 0)
        self.virtual_clock = clock = VirtualClock()
        draft_cost = _draft_cost(geometry, settings, cost, weight_dtype)
        follows = draft_cost if settings.speculation == "draft-model" else None
        super().__init__(
            make_manager(replace(cache_settings(geometry, settings, self.sizes, weight_dtype), symbolic=symbolic)),
            settings,
            VirtualRunner(cost, clock, geometry.vocab_size, follows),
            block_bytes=self.sizes.block_bytes,
            vocab_size=geometry.vocab_size,
            clock=clock,
            drafter=None if settings.speculation == "none" else VirtualDrafter(settings, draft_cost, clock),
            check=check,
            model=layer_windows(geometry),
        )
        can_run = in_runs and can_ever_run(settings, self.scheduler)
        runs = DecodeRuns(self.scheduler, self._recorder, cost, clock, None if symbolic else geometry.vocab_size)
        self._runs = runs if can_run else None

    def _compute(self, schedule: Schedule) -> Int64s:
        """Without beams and drafts the arrays that a model reads are not needed."""
        if schedule.is_empty or schedule.beams or self.scheduler.speculation is not None:
            return super()._compute(schedule)
        counts, decodes = schedule.counts, schedule.num_decodes
        sampled = decodes + len(schedule.samplers)
        step = self.cost.features(schedule.starts, counts, decodes, sampled)
        self.virtual_clock.advance(self.cost.step_s(step))
        if self.symbolic:
            return np.zeros(sampled, np.int64)
        return keyed_tokens(token_keys(schedule.random_keys, schedule.output_indices), self.vocab_size)

    def advance(self, until_s: float) -> Collection[StepRecord]:
        found = None if self._runs is None else self._runs.take(until_s)
        if found is None:
            return super().advance(until_s)
        steps, finished = found
        self._close(finished)
        return steps


def _draft_cost(
    geometry: ModelGeometry, settings: EngineSettings, cost: StepCost, weight_dtype: str
) -> StepCost | None:
    """What drafts, as a model of its own on the same device; None when nothing is computed for a draft."""
    draft = draft_geometry(geometry, settings)
    if draft is None:
        return None
    if not isinstance(cost, CostModel):
        raise UsageError(
            "a fitted model prices the model that it was fitted on, and no draft",
            hint='use speculation = "none", or the roofline of a device',
        )
    dtype = draft_kv_dtype(settings) if settings.speculation == "draft-model" else settings.kv_dtype
    return CostModel(
        draft,
        cost.rates,
        weight_dtype=weight_dtype,
        kv_dtype=dtype,
        block_size=settings.block_size,
        kv_scales=settings.kv_scales,
    )
