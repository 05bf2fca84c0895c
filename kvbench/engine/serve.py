"""Play a workload to the engine: by scheduled arrivals, or in a closed loop; follow-up turns after the answer before
them."""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kvbench.engine.beams import BeamParams
from kvbench.engine.clients import Clients
from kvbench.engine.interrupts import deferred_interrupts
from kvbench.engine.job import Job
from kvbench.engine.recorder import rejected_record
from kvbench.engine.sampling import GREEDY
from kvbench.errors import ExitCode, KvbenchError, UsageError
from kvbench.workload.tokens import token_ids

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from kvbench.engine.loop import EngineLoop
    from kvbench.engine.sampling import SamplingParams
    from kvbench.engine.telemetry import RequestRecord, StepRecord
    from kvbench.workload.request import Request
    from kvbench.workload.types import Workload

_NAP_S = 0.05
"""Longest sleep while idle, so that an interrupt or the deadline is noticed."""


@dataclass(slots=True)
class Served:
    """A workload that was played. Times are seconds since its start; `outputs` by request id."""

    requests: list[RequestRecord] = field(default_factory=list)
    steps: list[StepRecord] = field(default_factory=list)
    wall_s: float = 0.0
    outputs: dict[int, list[int]] = field(default_factory=dict)


class DeadlineError(KvbenchError):
    """The workload took longer than allowed; `served` holds what had finished."""

    exit_code = ExitCode.PARTIAL

    def __init__(self, deadline_s: float, served: Served, total: int) -> None:
        super().__init__(
            f"the deadline of {deadline_s:g} s passed with {len(served.requests)} of {total} requests finished",
            hint="allow more time, or serve fewer requests",
        )
        self.served = served


class Arrivals:
    """Requests that are still to come, by arrival; a follow-up joins when its predecessor has finished."""

    def __init__(self, requests: tuple[Request, ...], clients: int | None = None) -> None:
        """With `clients`, requests that follow no other come in a closed loop, whatever their own arrival says."""
        self._heap: list[tuple[float, int, Request]] = []
        self._followers: defaultdict[int, list[Request]] = defaultdict(list)
        for request in requests:
            if request.after is not None:
                self._followers[request.after].append(request)
        _check_dependencies(requests, self._followers)
        self._clients = None if clients is None else Clients(requests, clients)
        if self._clients is None:
            self._schedule((request.arrival_s, request) for request in requests if request.after is None)
        else:
            self._schedule(self._clients.begin())

    def __bool__(self) -> bool:
        """Whether something comes by itself; what waits for an answer of the engine does not count."""
        return bool(self._heap)

    @property
    def next_s(self) -> float:
        return self._heap[0][0]

    def take(self, now_s: float) -> list[tuple[float, Request]]:
        """Those that have arrived by now, with their scheduled arrival."""
        taken = []
        while self._heap and self._heap[0][0] <= now_s:
            arrival_s, _, request = heapq.heappop(self._heap)
            taken.append((arrival_s, request))
        return taken

    def finished(self, record: RequestRecord, now_s: float) -> list[RequestRecord]:
        """Schedule what follows a request that has ended; records of those that can never come, when it failed."""
        if record.e2e_s is None:
            rejected = self._reject_followers(record)
            for ended in (record, *rejected):
                self._next_of_client(ended.request_id, now_s)
            return rejected
        end_s = record.arrival_s + record.e2e_s
        self._schedule(
            (max(request.arrival_s, end_s + request.think_time_s), request)
            for request in self._followers.pop(record.request_id, ())
        )
        self._next_of_client(record.request_id, end_s)
        return []

    def _next_of_client(self, request_id: int, end_s: float) -> None:
        if self._clients is not None:
            self._schedule(self._clients.ended(request_id, end_s))

    def _schedule(self, coming: Iterable[tuple[float, Request]]) -> None:
        for arrival_s, request in coming:
            heapq.heappush(self._heap, (arrival_s, request.request_id, request))

    def _reject_followers(self, record: RequestRecord) -> list[RequestRecord]:
        rejected: list[RequestRecord] = []
        behind = [record]
        while behind:
            predecessor = behind.pop()
            followers = self._followers.pop(predecessor.request_id, ())
            behind += [_rejected_with(request, predecessor) for request in followers]
            rejected += behind[len(behind) - len(followers) :]
        return rejected


def serve(
    engine: EngineLoop,
    workload: Workload,
    *,
    sampling: SamplingParams | None = None,
    n: int = 1,
    beams: int = 1,
    on_step: Callable[[StepRecord], None] | None = None,
    deadline_s: float | None = None,
) -> Served:
    """Serve every request once; the engine's clock restarts at 0.

    `sampling`, `n` (outputs per request) and `beams` are used by every request; sampling None is greedy. A request
    whose predecessor was rejected or failed is rejected too. Past `deadline_s` a `DeadlineError` carries what has
    finished. Ctrl-C is obeyed after the step in flight; whatever ends the serving early, the engine gives up what it
    was doing and can be used again.
    """
    if engine.has_work:
        raise UsageError("the engine is already serving", hint="finish or abort its jobs first")
    session = _Session(engine, workload, sampling or GREEDY, n, beams)
    engine.clock.restart()
    with deferred_interrupts() as raise_if_interrupted:
        try:
            while session.is_unfinished:
                raise_if_interrupted()
                session.check_deadline(deadline_s)
                session.turn(on_step, math.inf if deadline_s is None else deadline_s)
        except BaseException:
            session.give_up()
            raise
    session.served.wall_s = engine.clock.now()
    return session.served


class _Session:
    """One workload on one engine."""

    def __init__(self, engine: EngineLoop, workload: Workload, sampling: SamplingParams, n: int, beams: int) -> None:
        self._engine = engine
        self._workload = workload
        self._sampling = sampling
        self._n = n
        self._beams = BeamParams(beams) if beams > 1 else None
        self._arrivals = Arrivals(workload.requests, workload.clients)
        self.served = Served()
        engine.take_finished()
        engine.take_outputs()

    @property
    def is_unfinished(self) -> bool:
        return self._engine.has_work or bool(self._arrivals)

    def turn(self, on_step: Callable[[StepRecord], None] | None, deadline_s: float) -> None:
        """Let in who has arrived, then one step, or a nap when there is nothing to do."""
        engine = self._engine
        for arrival_s, request in self._arrivals.take(engine.clock.now()):
            engine.add(self._job(request, arrival_s))
        records = engine.advance(min(deadline_s, self._arrivals.next_s) if self._arrivals else deadline_s)
        self.collect()
        if records:
            for record in records:
                self.served.steps.append(record)
                if on_step is not None:
                    on_step(record)
        elif self._arrivals:
            engine.clock.wait_until(min(self._arrivals.next_s, engine.clock.now() + _NAP_S))

    def collect(self) -> None:
        """Take what the engine has finished, and what follows from it."""
        for record in self._engine.take_finished():
            self.served.requests += [record, *self._arrivals.finished(record, self._engine.clock.now())]
        self.served.outputs |= self._engine.take_outputs()

    def give_up(self) -> None:
        """Leave the engine idle and without results of requests that were cut short."""
        self._engine.abort_all()
        self._engine.take_finished()
        self._engine.take_outputs()

    def check_deadline(self, deadline_s: float | None) -> None:
        now = self._engine.clock.now()
        if deadline_s is not None and now > deadline_s:
            self.served.wall_s = now
            raise DeadlineError(deadline_s, self.served, len(self._workload.requests))

    def _job(self, request: Request, arrival_s: float) -> Job:
        seed, vocab_size = self._workload.seed, self._engine.vocab_size
        forced = None if request.output is None else token_ids(request.output, seed, vocab_size)
        return Job(
            request_id=request.request_id,
            prompt=token_ids(request.prompt, seed, vocab_size),
            max_tokens=request.output_tokens,
            forced=forced,
            sampling=self._sampling,
            arrival_s=arrival_s,
            salt=request.salt,
            seed=seed,
            n=self._n,
            beams=self._beams,
            priority=request.priority,
        )


def _rejected_with(request: Request, predecessor: RequestRecord) -> RequestRecord:
    reason = f"request {predecessor.request_id} before it was not served: {predecessor.error}"
    return rejected_record(request.request_id, predecessor.arrival_s, request.input_tokens, reason, request.priority)


def _check_dependencies(requests: tuple[Request, ...], followers: dict[int, list[Request]]) -> None:
    """Every request must be reachable from one that comes by itself, or the workload would never end."""
    if len({request.request_id for request in requests}) != len(requests):
        raise UsageError("two requests of the workload have the same id", hint="give every request its own id")
    reached, frontier = 0, [request for request in requests if request.after is None]
    while frontier:
        reached += len(frontier)
        frontier = [later for request in frontier for later in followers.get(request.request_id, ())]
    if reached != len(requests):
        raise UsageError(
            f"{len(requests) - reached} of {len(requests)} requests wait for one that never comes",
            hint="`after` must name an earlier request of the workload",
        )
