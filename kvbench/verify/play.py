"""One scenario through the real scheduler and the real cache, over the oracle's device, checked after every event."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import numpy as np

from kvbench.cache.manager import make_manager
from kvbench.cache.paged import PagedManager
from kvbench.cache.types import CacheManager
from kvbench.engine.beams import BeamParams
from kvbench.engine.job import Job
from kvbench.engine.loop import EngineLoop
from kvbench.engine.sampling import GREEDY, SamplingParams
from kvbench.engine.speculation.prompt_lookup import PromptLookup
from kvbench.errors import InternalError, UsageError
from kvbench.verify.corrupt import corrupt_and_detect
from kvbench.verify.guesser import Guesser
from kvbench.verify.honest import VOCAB, honest_outputs, stop_tokens
from kvbench.verify.oracle import OracleDevice
from kvbench.verify.places import COPY_FAULTS, Places
from kvbench.verify.settings import cache_settings, engine_settings
from kvbench.verify.watch import Watch

if TYPE_CHECKING:
    from kvbench.cache.types import Int32s
    from kvbench.engine.speculation.drafter import Drafter
    from kvbench.engine.telemetry import RequestRecord
    from kvbench.spec.engine import EngineSettings
    from kvbench.verify.scenario import Ask, Fault, Scenario

_ENDLESS = 400
"""Turns per token after which a load is said never to end"""


@dataclass(frozen=True, slots=True)
class Outcome:
    """`failure` is what was wrong, None when nothing was."""

    steps: int
    faults: int
    failure: str | None = None


class TurnClock:
    """Time is the number of turns."""

    def __init__(self) -> None:
        self.time = 0.0

    def restart(self) -> None:
        self.time = 0.0

    def now(self) -> float:
        return self.time

    def wait_until(self, t_s: float) -> None:
        self.time = max(self.time, t_s)


def play(scenario: Scenario) -> Outcome:
    """Serve the scenario; whatever goes wrong, an exception of any kind included, is the outcome's `failure`.
    `UsageError` when the settings are none that a suite could have."""
    session = _Session(scenario)
    try:
        session.run()
    except Exception as error:
        return Outcome(session.device.steps, session.injected, f"{type(error).__name__}: {error}")
    return Outcome(session.device.steps, session.injected)


class _Session:
    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.settings = engine_settings(scenario)
        sizes = cache_settings(scenario, self.settings)
        groups = len(scenario.windows)
        sizes_in_blocks = {
            "device": scenario.num_blocks + 1,
            "host": scenario.host_blocks,
            "disk": scenario.disk_blocks,
            "swap": scenario.swap_blocks,
        }
        self.places = Places(sizes_in_blocks, self.settings.block_size, scenario.lag)
        self.device = OracleDevice(self.places, groups, VOCAB)
        self.watch = Watch(make_manager(sizes), self.device)
        self.clock = TurnClock()
        self.engine = EngineLoop(
            cast("CacheManager", self.watch), self.settings, self.device,
            block_bytes=1, vocab_size=VOCAB, clock=self.clock, check=True, drafter=_drafter(scenario, self.settings),
        )  # fmt: skip
        self.watch.may_refuse = self._decodes_among_others
        self.injected = 0
        self._aborted: set[int] = set()
        self._faults: dict[int, list[Fault]] = {}
        for fault in scenario.faults:
            self._faults.setdefault(fault.turn, []).append(fault)

    def run(self) -> None:
        coming = sorted(self.scenario.asks, key=lambda ask: (-ask.arrival, -ask.request_id))
        limit = _ENDLESS + _ENDLESS * sum(len(ask.prompt) + ask.output for ask in self.scenario.asks)
        for turn in range(limit):
            while coming and coming[-1].arrival <= turn:
                self.engine.add(_job(coming.pop()))
            for fault in self._faults.get(turn, ()):
                self._inject(fault)
            self.clock.time = max(self.clock.time, float(turn))
            if self.engine.has_work:
                self._step()
            elif not coming:
                self._check_the_end()
                return
        raise InternalError(f"the load does not end within {limit} turns")

    def _step(self) -> None:
        record = self.engine.step()
        self.watch.check_rows()
        promised = self.settings.admission == "guaranteed-no-evict" and not self.watch.refusals.injected
        if promised and record is not None and record.preemptions:
            raise InternalError("a preemption, although room was promised to everyone")

    def _decodes_among_others(self, rows: Int32s) -> bool:
        scheduler = self.engine.scheduler
        running = [*scheduler.prefilling, *scheduler.decoding.sequences]
        others = len({sequence.request_id for sequence in running}) > 1
        return others and rows[0] in [sequence.table_row for sequence in scheduler.decoding.sequences]

    def _inject(self, fault: Fault) -> None:
        rng = random.Random(fault.argument)
        self.injected += 1
        if fault.kind == "abort":
            self._abort(fault.argument)
        elif fault.kind == "evict":
            self._evict(1 + fault.argument % 4)
        elif fault.kind == "refuse-admission":
            self.watch.refusals.admissions += 1
        elif fault.kind == "refuse-growth" and self.settings.admission != "guaranteed-no-evict":
            self.watch.refusals.growths += 1
        elif fault.kind == "copy":
            self.places.faults.append(rng.choice(COPY_FAULTS))
        elif fault.kind == "lose-disk":
            self._lose_the_disk()
        elif fault.kind == "corrupt":
            unnoticed = corrupt_and_detect(self.watch, rng)
            if unnoticed is not None:
                raise InternalError(f"damage that nobody noticed: {unnoticed}")

    def _abort(self, request_id: int) -> None:
        try:
            self.engine.abort(request_id)
        except UsageError:  # it has not come yet, or is over
            return
        self.engine.check_invariants()
        self._aborted.add(request_id)

    def _lose_the_disk(self) -> None:
        """It can no longer be written: what the runner reports goes through the loop."""
        if self.scenario.disk_blocks:
            self.engine.copying.lose_disk("lost by the verification")
            self.engine.check_invariants()

    def _evict(self, count: int) -> None:
        if isinstance(self.watch.manager, PagedManager):
            self.watch.manager.forget_cached(count)
            self.engine.check_invariants()

    def _check_the_end(self) -> None:
        records, outputs = self.engine.take_finished(), self.engine.take_all_outputs()
        asked = sorted(ask.request_id for ask in self.scenario.asks)
        if sorted(record.request_id for record in records) != asked:
            raise InternalError("requests are lost or finished twice")
        by_id = {ask.request_id: ask for ask in self.scenario.asks}
        for record in records:
            self._check_answer(record, by_id[record.request_id], outputs.get(record.request_id, []))
        self.engine.settle()
        stats = self.engine.manager.stats()
        if stats.blocks_used or stats.blocks_in_transfer or stats.reserved_slots:
            raise InternalError(f"{stats.blocks_used} blocks are still used when everything is over")

    def _check_answer(self, record: RequestRecord, ask: Ask, outputs: list[list[int]]) -> None:
        expected = honest_outputs(ask)
        if ask.request_id in self._aborted:
            if ask.beams:
                return
            expected = [right[: len(output)] for right, output in zip(expected, outputs, strict=False)]
        elif record.finish_reason not in ("length", "stop"):
            raise InternalError(f"request {ask.request_id} ended as {record.finish_reason}: {record.error}")
        if outputs != expected:
            raise InternalError(f"request {ask.request_id} got {outputs}, right is {expected}")
        if ask.width == 1 and record.output_tokens != len(outputs[0]):
            raise InternalError(f"request {ask.request_id} counts {record.output_tokens} output tokens: {outputs[0]}")


def _drafter(scenario: Scenario, settings: EngineSettings) -> Drafter | None:
    if settings.speculation == "none":
        return None
    return PromptLookup() if scenario.guess is None else Guesser(scenario.guess)


def _job(ask: Ask) -> Job:
    return Job(
        request_id=ask.request_id,
        prompt=np.array(ask.prompt, np.int32),
        max_tokens=ask.output,
        forced=None if ask.forced is None else np.array(ask.forced, np.int32),
        stop_tokens=stop_tokens(ask),
        sampling=SamplingParams(1.0) if ask.samples > 1 else GREEDY,
        priority=ask.priority,
        n=ask.samples,
        beams=BeamParams(ask.beams) if ask.beams else None,
        arrival_s=float(ask.arrival),
        salt=ask.salt,
    )
