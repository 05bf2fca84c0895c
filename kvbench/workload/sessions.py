"""Synthetic requests: conversations of one or more turns, with or without a shared system prompt.

A conversation is one token stream: a turn's prompt is the stream from 0 to where the conversation stands, its forced
output the next piece, so that turn k + 1 repeats prompt and output of turn k to the token.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from kvbench.errors import UsageError
from kvbench.workload.arrivals import Nanoseconds, all_at_once, poisson
from kvbench.workload.clipping import Clipper
from kvbench.workload.lengths import Drawn, draw_lengths
from kvbench.workload.prefixes import draw_groups, prefix_segment
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
    shares = settings.prefix.groups > 0 or settings.sessions.turns > 1
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
    if settings.arrival.kind == "poisson":
        return poisson(count, settings.arrival.rate or 1.0, settings.seed)
    return all_at_once(count)


def _turns(settings: WorkloadSettings, inputs: list[int], outputs: list[int], clipper: Clipper) -> Iterator[Request]:
    turns = settings.sessions.turns
    count = -(-settings.requests // turns)
    starts = (session_starts(settings, count) / 1e9).tolist()
    groups = draw_groups(settings.prefix, settings.seed, count)
    for session in range(count):
        front = () if groups is None else (prefix_segment(settings.prefix, int(groups[session])),)
        first = session * turns
        numbers = range(first, min(first + turns, settings.requests))
        yield from _session(settings, session, front, starts[session], numbers, inputs, outputs, clipper)


def _session(
    settings: WorkloadSettings,
    session: int,
    front: tuple[Segment, ...],
    start_s: float,
    numbers: range,
    inputs: list[int],
    outputs: list[int],
    clipper: Clipper,
) -> Iterator[Request]:
    stream, said = conversation_stream(session), 0
    is_conversation = settings.sessions.turns > 1
    for number in numbers:
        asked = said + inputs[number]
        prompt = clipper.prompt((*front, Segment(stream, 0, asked)))
        answer = clipper.output(outputs[number])
        is_first = number == numbers.start
        yield Request(
            request_id=number,
            input_tokens=sum(segment.length for segment in prompt),
            output_tokens=answer,
            prompt=prompt,
            arrival_s=start_s,
            output=(Segment(stream, asked, answer),) if settings.outputs == "forced" else None,
            after=None if is_first else number - 1,
            think_time_s=0.0 if is_first else settings.sessions.think_time_s,
            session_id=session if is_conversation else None,
        )
        said = asked + answer


def _refuse_unknown_answers(settings: WorkloadSettings) -> None:
    if settings.sessions.turns > 1 and settings.outputs == "sampled":
        raise UsageError(
            'sessions.turns > 1 needs outputs = "forced": the next turn repeats an answer that is known beforehand',
            hint='set workload.outputs = "forced", or workload.sessions.turns = 1',
        )
