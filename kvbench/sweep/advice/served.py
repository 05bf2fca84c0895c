"""A few hundred requests served on the virtual clock under one candidate's settings: what it would do with them."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from kvbench.engine.serve import Arrivals, serve
from kvbench.engine.step_run import StepRun
from kvbench.engine.symbolic import check_symbolic, symbolic_job
from kvbench.engine.virtual import VirtualEngine
from kvbench.errors import UsageError
from kvbench.workload.types import ImportReport, Workload

if TYPE_CHECKING:
    from kvbench.costmodel.cost import StepCost
    from kvbench.engine.telemetry import RequestRecord, StepRecord
    from kvbench.geometry.model import ModelGeometry
    from kvbench.measure.domain import Reach
    from kvbench.spec.engine import EngineSettings
    from kvbench.workload.request import Request


@dataclass(frozen=True, slots=True)
class Outcome:
    """What serving the requests came to. Latencies are medians over the finished ones, seconds."""

    wall_s: float
    output_tokens: int
    ttft_s: float | None
    tpot_s: float | None
    active_mean: float
    """Sequences being served, mean over time in steps"""
    rejected: int
    busy_share: float
    """Share of the time spent in steps: below 1 where requests come more slowly than they are served"""

    @property
    def tokens_per_s(self) -> float:
        return self.output_tokens / self.wall_s if self.wall_s > 0 else math.nan


def served_by(
    geometry: ModelGeometry,
    settings: EngineSettings,
    cost: StepCost,
    requests: Sequence[Request],
    clients: int | None,
    max_context: int,
    reach: Reach | None = None,
) -> Outcome:
    """Serve the requests once; `reach` is told of every step. Raises `CannotRunError` where the pool cannot hold one
    sequence."""
    symbolic = _can_be_symbolic(geometry, settings)
    engine = VirtualEngine(
        geometry, settings, cost, weight_dtype=settings.weight_dtype, max_context=max_context, symbolic=symbolic
    )
    totals = _Totals(reach)
    if symbolic:
        records = _by_name(engine, requests, clients, totals)
    else:
        report = ImportReport("recommend", "sample")
        served = serve(engine, Workload(tuple(requests), report, "", 0, clients))
        totals.take(served.steps)
        records = served.requests
    return totals.outcome(records, engine.clock.now())


def _can_be_symbolic(geometry: ModelGeometry, settings: EngineSettings) -> bool:
    """Whether contents may be named instead of written down: much quicker, and the same."""
    if settings.speculation != "none":
        return False
    try:
        check_symbolic(geometry, settings)
    except UsageError:
        return False
    return True


def _by_name(
    engine: VirtualEngine, requests: Sequence[Request], clients: int | None, totals: _Totals
) -> list[RequestRecord]:
    arrivals = Arrivals(tuple(requests), clients)
    records: list[RequestRecord] = []
    engine.clock.restart()
    while engine.has_work or arrivals:
        for arrival_s, request in arrivals.take(engine.clock.now()):
            engine.add(replace(symbolic_job(request, 0), arrival_s=arrival_s))
        steps = engine.advance(arrivals.next_s if arrivals else math.inf)
        for record in engine.take_finished():
            records += [record, *arrivals.finished(record, engine.clock.now())]
        engine.take_outputs()
        if steps:
            totals.take(steps)
        elif arrivals:
            engine.clock.wait_until(arrivals.next_s)
    return records


@dataclass(slots=True)
class _Totals:
    """Sums over steps, so that no step has to be kept."""

    reach: Reach | None
    busy_s: float = 0.0
    active_s: float = 0.0

    def take(self, steps: Collection[StepRecord]) -> None:
        if self.reach is not None:
            self.reach.take(steps)
        if isinstance(steps, StepRun):
            seconds = float(steps.columns["duration_s"].sum())
            self.busy_s += seconds
            self.active_s += seconds * steps.base.active_sequences
            return
        for step in steps:
            self.busy_s += step.duration_s
            self.active_s += step.duration_s * step.active_sequences

    def outcome(self, records: Sequence[RequestRecord], wall_s: float) -> Outcome:
        done = [r for r in records if r.finish_reason in ("length", "stop")]
        return Outcome(
            wall_s=wall_s,
            output_tokens=sum(r.output_tokens for r in done),
            ttft_s=_median([r.ttft_s for r in done]),
            tpot_s=_median([r.tpot_s for r in done]),
            active_mean=self.active_s / self.busy_s if self.busy_s else 0.0,
            rejected=len(records) - len(done),
            busy_share=min(1.0, self.busy_s / wall_s) if wall_s > 0 else 0.0,
        )


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.median(known)) if known else None
