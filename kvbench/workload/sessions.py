"""Synthetic requests: conversations of one or more turns, with or without a shared system prompt.

A conversation is one token stream: a turn's prompt is the stream from 0 to where the conversation stands, its forced
output the next piece, so that turn k + 1 repeats prompt and output of turn k to the token.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from kvbench.errors import UsageError
from kvbench.workload.arrivals import Nanoseconds, all_at_once, constant, gamma, poisson
from kvbench.workload.clipping import Clipper
from kvbench.workload.draws import exponentials
from kvbench.workload.lengths import Drawn, draw_lengths
from kvbench.workload.prefixes import draw_tenants, fronts
from kvbench.workload.priorities import draw_priorities
from kvbench.workload.request import Request, Segment
from kvbench.workload.tokens import conversation_stream
from kvbench.workload.types import ImportReport

if TYPE_CHECKING:
    from kvbench.spec.workload import WorkloadSettings


def synthetic_requests(settings: WorkloadSettings) -> tuple[list[Request], ImportReport]:
    """Requests in order of arrival, and the account of them."""
    _refuse_unknown_answers(settings)
    inputs = draw_lengths(settings.input_tokens, settings.seed, "input", settings.requests)
    outputs = draw_lengths(settings.output_tokens, settings.seed, "output", settings.requests)
    clipper = Clipper(settings)
    requests = list(_turns(settings, inputs.tokens.tolist(), outputs.tokens.tolist(), clipper))
    shares = settings.prefix.groups > 0 or settings.sessions.turns > 1 or settings.documents.corpus > 0
    return requests, ImportReport(
        source="synthetic",
        format="synthetic",
        rows_read=len(requests),
        rows_kept=len(requests),
        clipped_inputs=clipper.inputs,
        clipped_outputs=clipper.outputs,
        clipped_draws=clipped_draws(input_tokens=inputs, output_tokens=outputs),
        sharing="synthetic" if shares else "none",
    )


def clipped_draws(**drawn: Drawn) -> dict[str, int]:
    """Name of the distribution and side → draws that were moved; sides without any are left out."""
    counts = {f"{name} raised to min": d.raised for name, d in drawn.items()}
    counts |= {f"{name} lowered to max": d.lowered for name, d in drawn.items()}
    return {name: count for name, count in counts.items() if count}


def session_starts(settings: WorkloadSettings, count: int) -> Nanoseconds:
    """When each of `count` sessions (or lone requests) begins, unless the trace says."""
    arrival, seed = settings.arrival, settings.seed
    rate = arrival.rate or 1.0
    if arrival.kind == "poisson":
        return poisson(count, rate, seed)
    if arrival.kind == "gamma":
        return gamma(count, rate, arrival.burstiness, seed)
    if arrival.kind == "constant":
        return constant(count, rate)
    return all_at_once(count)


def client_think_times(settings: WorkloadSettings, count: int) -> list[float]:
    """Closed loop: how long a client waits before each of `count` sessions; 0 elsewhere."""
    if settings.arrival.kind != "closed-loop":
        return [0.0] * count
    return _think_times(settings.arrival.think, settings.arrival.think_time_s, settings.seed, count)


def _think_times(kind: str, mean_s: float, seed: int, count: int) -> list[float]:
    """Whole nanoseconds, as arrivals are."""
    spread = exponentials(seed, "think", count) if kind == "exponential" else np.ones(count)
    times: list[float] = (np.rint(spread * mean_s * 1e9) / 1e9).tolist()
    return times


def _turns(settings: WorkloadSettings, inputs: list[int], outputs: list[int], clipper: Clipper) -> Iterator[Request]:
    turns = settings.sessions.turns
    count = -(-settings.requests // turns)
    starts = (session_starts(settings, count) / 1e9).tolist()
    before, salts = fronts(settings, count), draw_tenants(settings.prefix, settings.seed, count)
    pauses = client_think_times(settings, count)
    think = _think_times(settings.sessions.think, settings.sessions.think_time_s, settings.seed, settings.requests)
    priorities = draw_priorities(settings, count)
    for session in range(count):
        first = session * turns
        plan = _Session(session, before[session], salts[session], starts[session], pauses[session])
        numbers = range(first, min(first + turns, settings.requests))
        turns_of_it, priority = _session(settings, plan, numbers, inputs, outputs, think, clipper), priorities[session]
        yield from (replace(turn, priority=priority) for turn in turns_of_it) if priority else turns_of_it


class _Session(NamedTuple):
    """What all turns of a session have in common."""

    number: int
    front: tuple[Segment, ...]
    salt: str | None
    start_s: float
    pause_s: float
    """Closed loop: the client's think time before it"""


def _session(
    settings: WorkloadSettings,
    plan: _Session,
    numbers: range,
    inputs: list[int],
    outputs: list[int],
    think: list[float],
    clipper: Clipper,
) -> Iterator[Request]:
    stream, said = conversation_stream(plan.number), 0
    is_conversation = settings.sessions.turns > 1
    for number in numbers:
        asked = said + inputs[number]
        prompt = clipper.prompt((*plan.front, Segment(stream, 0, asked)))
        answer = clipper.output(outputs[number])
        is_first = number == numbers.start
        yield Request(
            request_id=number,
            input_tokens=sum(segment.length for segment in prompt),
            output_tokens=answer,
            prompt=prompt,
            arrival_s=plan.start_s,
            output=(Segment(stream, asked, answer),) if settings.outputs == "forced" else None,
            after=None if is_first else number - 1,
            think_time_s=plan.pause_s if is_first else think[number],
            session_id=plan.number if is_conversation else None,
            salt=plan.salt,
        )
        said = asked + answer


def _refuse_unknown_answers(settings: WorkloadSettings) -> None:
    if settings.sessions.turns > 1 and settings.outputs == "sampled":
        raise UsageError(
            'sessions.turns > 1 needs outputs = "forced": the next turn repeats an answer that is known beforehand',
            hint='set workload.outputs = "forced", or workload.sessions.turns = 1',
        )
