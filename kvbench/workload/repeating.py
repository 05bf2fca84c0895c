"""A workload played again and again: the same lengths and gaps, arrivals that go on, and fresh prefixes every time.

Repetition r of a request names the streams of the first one moved on by r times more numbers than they span, so that no
repetition shares a token by name with another, and everything that is shared within one stays shared.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

from kvbench.errors import UsageError
from kvbench.workload.request import Segment
from kvbench.workload.tokens import moved_stream, stream_index

if TYPE_CHECKING:
    from kvbench.workload.request import Request


def repeated_requests(requests: Sequence[Request], count: int) -> Iterator[Request]:
    """The first `count` requests of endless repetitions, one at a time. `requests` are in order of arrival and follow
    nobody; a repetition begins one mean gap after the last arrival of the one before."""
    if any(request.after is not None for request in requests):
        raise UsageError("requests that follow others cannot be repeated", hint="use a workload without sessions")
    return islice(_endless(requests), count)


def _endless(requests: Sequence[Request]) -> Iterator[Request]:
    last_s = requests[-1].arrival_s
    period_s = last_s + (last_s / (len(requests) - 1) if len(requests) > 1 else 0.0)
    span = 1 + max(stream_index(s.stream) for r in requests for s in (*r.prompt, *(r.output or ())))
    yield from requests
    repetition = 1
    while True:
        for request in requests:
            yield _again(request, repetition, len(requests), period_s, span)
        repetition += 1


def _again(request: Request, repetition: int, number: int, period_s: float, span: int) -> Request:
    move = repetition * span
    return replace(
        request,
        request_id=request.request_id + repetition * number,
        arrival_s=request.arrival_s + repetition * period_s,
        prompt=_moved(request.prompt, move),
        output=None if request.output is None else _moved(request.output, move),
        session_id=None if request.session_id is None else request.session_id + repetition * number,
    )


def _moved(segments: Sequence[Segment], by: int) -> tuple[Segment, ...]:
    return tuple(Segment(moved_stream(s.stream, by), s.start, s.length) for s in segments)
