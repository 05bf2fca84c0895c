"""The requests that every candidate serves: all of a short list in its order, or samples that keep the distribution."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvbench.spec.workload import WorkloadSettings
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


@dataclass(frozen=True, slots=True)
class Plan:
    """What every candidate serves, and what that is in words. Several lists are samples of one distribution, so that
    what the choice of requests decides can be told."""

    lists: tuple[Serving, ...]
    told: str
    is_recorded: bool = False
    """Whether they are a trace's own requests, which share prefixes"""

    @property
    def requests(self) -> int:
        return sum(len(one.requests) for one in self.lists)


def plan_servings(
    sample: LengthSample,
    workload: WorkloadSettings,
    *,
    at_once: int,
    trace: Path | None,
    requests: int | None,
    seed: int,
) -> Plan:
    """What to serve of the sample, where `at_once` sequences run at once.

    A short list is served as it is. Of a longer one up to three samples are, `requests` in all. `trace` is given where
    requests must share prefixes as it records them: then its first requests are served, for a sample of rows would lose
    what they share."""
    most = MOST if requests is None else requests
    if trace is not None:
        count = min(most, len(sample))
        told = f"the first {count:,} requests of the trace, which share prefixes as recorded"
        return Plan((Serving(_recorded(trace, workload, count), _clients(workload)),), told, is_recorded=True)
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


def _recorded(trace: Path, workload: WorkloadSettings, count: int) -> tuple[Request, ...]:
    settings = WorkloadSettings(source="trace", trace=str(trace), limit=count, arrival=workload.arrival)
    return build_workload(settings).requests


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
