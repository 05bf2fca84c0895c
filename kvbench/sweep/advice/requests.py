"""The requests that every candidate serves: all of a short list in its order, or samples that keep the distribution."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kvbench.spec.workload import WorkloadSettings
from kvbench.store.run import open_run
from kvbench.workload.build import build_workload
from kvbench.workload.request import Request, Segment
from kvbench.workload.sessions import client_think_times, session_starts
from kvbench.workload.tokens import conversation_stream

if TYPE_CHECKING:
    from pathlib import Path

    from kvbench.analysis.advice.lengths import LengthSample

MOST = 400
"""Requests that a candidate serves unless more are asked for: what takes about a second for six candidates"""
ROUNDS = 4
"""Requests of a sample for every sequence that is served at once, where there is room for three samples of so many"""
FEWEST = 60


@dataclass(frozen=True, slots=True)
class Serving:
    """One list of requests, with the clients of a closed loop."""

    requests: tuple[Request, ...]
    clients: int | None

    @property
    def follows_steps_alone(self) -> bool:
        """Whether time in steps is the only clock: nothing waits for a moment, and nobody pauses to think."""
        waits = any(
            request.arrival_s and (self.clients is None or request.after is not None) for request in self.requests
        )
        return not waits and not any(request.think_time_s for request in self.requests)


@dataclass(frozen=True, slots=True)
class Source:
    """Where requests that share prefixes are recorded: a trace, or a run with the digest of one of its workloads."""

    path: Path
    digest: str | None = None

    def first(self, count: int, workload: WorkloadSettings) -> tuple[Request, ...]:
        """The first `count` requests, arriving as the workload says."""
        if self.digest is not None:
            return _arriving(open_run(self.path).requests_of(self.digest)[:count], workload)
        settings = WorkloadSettings(source="trace", trace=str(self.path), limit=count, arrival=workload.arrival)
        return build_workload(settings).requests


@dataclass(frozen=True, slots=True)
class Plan:
    """What every candidate serves, and what that is in words. Several lists are samples of one distribution, so that
    what the choice of requests decides can be told."""

    lists: tuple[Serving, ...]
    told: str
    is_recorded: bool = False
    """Whether they are the own requests of a trace or a run, which share prefixes"""

    @property
    def requests(self) -> int:
        return sum(len(one.requests) for one in self.lists)


def plan_servings(
    sample: LengthSample,
    workload: WorkloadSettings,
    *,
    at_once: int,
    recorded: Source | None,
    requests: int | None,
    seed: int,
) -> Plan:
    """What to serve of the sample, where `at_once` sequences run at once.

    A short list is served as it is. Of a longer one up to three samples are, `requests` in all. `recorded` is given
    where requests must share prefixes as recorded there: then the first ones are served, for a sample of rows would
    lose what they share."""
    most = MOST if requests is None else requests
    if recorded is not None:
        count = min(most, len(sample))
        what = "trace" if recorded.digest is None else "run"
        told = f"the first {count:,} requests of the {what}, which share prefixes as recorded"
        return Plan((Serving(recorded.first(count, workload), _clients(workload)),), told, is_recorded=True)
    if len(sample) <= most:
        return Plan((Serving(_of_rows(sample, workload), _clients(workload)),), f"all {len(sample):,} requests")
    wanted = max(ROUNDS * at_once, FEWEST)
    samples = 3 if 3 * wanted <= most else 2 if wanted <= most else 1
    size = max(1, most // samples)
    if requests is None:
        size = min(size, wanted)
    lists = [sample.sample(size, seed + number) for number in range(samples)]
    what = f"{samples} samples of {size:,}" if samples > 1 else f"a sample of {size:,}"
    told = f"{what} of {sample.requests_total:,} requests, stratified by length"
    return Plan(tuple(Serving(_of_rows(one, workload), _clients(workload)) for one in lists), told)


def _clients(workload: WorkloadSettings) -> int | None:
    return workload.arrival.clients if workload.arrival.kind == "closed-loop" else None


def _arriving(requests: Sequence[Request], workload: WorkloadSettings) -> tuple[Request, ...]:
    """A run's requests, those that follow no other arriving by the workload; recorded arrivals stay as they are."""
    if workload.arrival.kind == "recorded":
        return tuple(requests)
    count = sum(request.after is None for request in requests)
    moments = zip((session_starts(workload, count) / 1e9).tolist(), client_think_times(workload, count), strict=True)
    starts: dict[int, float] = {}
    found = []
    for request in requests:
        start_s, think_s = (starts[request.after], request.think_time_s) if request.after is not None else next(moments)
        starts[request.request_id] = start_s
        found.append(replace(request, arrival_s=start_s, think_time_s=think_s))
    return tuple(found)


def _of_rows(sample: LengthSample, workload: WorkloadSettings) -> tuple[Request, ...]:
    count = len(sample)
    arrivals: Sequence[float] = (session_starts(workload, count) / 1e9).tolist()
    pauses = client_think_times(workload, count)
    rows = zip(sample.inputs.tolist(), sample.outputs.tolist(), arrivals, pauses, strict=True)
    return tuple(
        Request(
            request_id=number,
            input_tokens=inputs,
            output_tokens=outputs,
            prompt=(Segment(conversation_stream(number), 0, inputs),),
            arrival_s=arrival_s,
            output=(Segment(conversation_stream(number), inputs, outputs),),
            think_time_s=pause_s,
        )
        for number, (inputs, outputs, arrival_s, pause_s) in enumerate(rows)
    )
