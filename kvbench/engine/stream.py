"""Serve requests that nobody has listed: they come from an iterator, and what happened goes to a sink. Torch-free.

For a million requests and more, where neither the workload nor its records fit in memory.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Protocol

from kvbench.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from kvbench.engine.job import Job
    from kvbench.engine.loop import EngineLoop
    from kvbench.engine.telemetry import RequestRecord, StepRecord


class Sink(Protocol):
    """Takes what happened, in order."""

    def steps(self, steps: Collection[StepRecord]) -> None:
        """Consecutive steps; a `StepRun` where they were taken at once."""
        ...

    def request(self, record: RequestRecord) -> None: ...


def serve_stream(engine: EngineLoop, jobs: Iterator[Job], sink: Sink) -> float:
    """Serve jobs that come in order of arrival; the clock at the end, seconds. The engine's clock restarts at 0."""
    if engine.has_work:
        raise UsageError("the engine is already serving", hint="finish or abort its jobs first")
    engine.clock.restart()
    coming = next(jobs, None)
    while coming is not None or engine.has_work:
        now = engine.clock.now()
        while coming is not None and coming.arrival_s <= now:
            engine.add(coming)
            coming = _next(jobs, coming)
        steps = engine.advance(math.inf if coming is None else coming.arrival_s)
        for record in engine.take_finished():
            sink.request(record)
        engine.take_outputs()
        if steps:
            sink.steps(steps)
        elif coming is not None:
            engine.clock.wait_until(coming.arrival_s)
    return engine.clock.now()


def _next(jobs: Iterator[Job], last: Job) -> Job | None:
    job = next(jobs, None)
    if job is not None and job.arrival_s < last.arrival_s:
        raise UsageError(
            f"request {job.request_id} arrives before request {last.request_id}, which stands before it",
            hint="sort the requests by arrival",
        )
    return job
