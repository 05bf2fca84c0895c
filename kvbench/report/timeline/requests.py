"""The requests' part of a timeline: a slice each, in it queue, prefill and decode, in these pieces and preemptions.

A few requests get a track each. Many are packed into as few lanes as they need, those that wait apart from those that
are served, so that lanes are about as many as seats.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from kvbench.report.timeline.events import ENGINE, LANES, QUEUE, REQUESTS, Event, microseconds, thread_names

Row = dict[str, Any]
MAX_TRACKS = 128
"""Up to so many requests have a track each."""
PHASES = ("queue", "prefill", "decode")
ARGUMENTS = (
    "input_tokens", "output_tokens", "cached_tokens", "allocated_blocks", "queue_time_s", "prefill_time_s",
    "decode_time_s", "ttft_s", "tpot_s", "e2e_s", "preemptions", "recomputed_tokens", "priority", "passed_over",
    "draft_tokens", "accepted_tokens", "finish_reason", "error",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of a request's life, whole microseconds, with the slice's name and arguments."""

    name: str
    start_us: int
    end_us: int
    args: dict[str, Any]


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Where the steps lie: `[n]` starts and ends in microseconds, ascending."""

    starts: Sequence[int]
    ends: Sequence[int]

    @classmethod
    def of(cls, t_s: Iterable[float], duration_s: Iterable[float]) -> StepTimes:
        """No step begins before the one before it has ended, however the times are rounded."""
        starts: list[int] = []
        ends: list[int] = []
        for begun, length in zip(t_s, duration_s, strict=True):
            starts.append(max(microseconds(begun), ends[-1] if ends else 0))
            ends.append(max(microseconds(begun + length), starts[-1]))
        return cls(starts, ends)

    def around(self, at_us: int) -> tuple[int, int] | None:
        """The step that was under way then; None where it is not on record."""
        at = bisect_right(self.starts, at_us) - 1
        return (self.starts[at], self.ends[at]) if at >= 0 and at_us <= self.ends[at] else None


def phases(row: Row) -> list[Span]:
    """Queue, prefill and decode, as far as the request came; they follow each other without a gap."""
    arrival = row["arrival_s"]
    queue, ttft, decode = row["queue_time_s"], row["ttft_s"], row["decode_time_s"]
    ends = (
        None if queue is None else arrival + queue,
        None if ttft is None else arrival + ttft,
        None if ttft is None or decode is None else arrival + ttft + decode,
    )
    found, start = [], microseconds(arrival)
    for name, end in zip(PHASES, ends, strict=True):
        if end is None:
            break
        end_us = max(start, microseconds(end))
        found.append(Span(name, start, end_us, {}))
        start = end_us
    return found


def pauses(row: Row, end_us: int) -> list[Span]:
    """From the loss of the blocks to the next computation, or to the end; overlapping ones (of several sequences of one
    request) as one."""
    lost, back = row.get("preempted_at_s") or [], row.get("resumed_at_s") or []
    swapped = set(row.get("swapped_at_s") or [])
    ends = [microseconds(at_s) for at_s in back] + [end_us] * (len(lost) - len(back))
    found: list[Span] = []
    for start_s, end in sorted(zip(lost, ends, strict=True)):
        name, start = "swapped out" if start_s in swapped else "preempted", microseconds(start_s)
        if found and start < found[-1].end_us:
            found[-1] = Span(found[-1].name, found[-1].start_us, max(end, found[-1].end_us), {})
        elif end >= start:
            found.append(Span(name, start, end, {}))
    return found


def pieces(row: Row, steps: StepTimes) -> list[Span]:
    """What was computed of the prompt, or computed again, to the end of its step; those whose step is not on record are
    left out. Nothing where one step computed the whole prompt: the prefill is that piece."""
    times, tokens = row.get("piece_at_s") or [], row.get("piece_tokens") or []
    found = []
    for at_s, count in zip(times, tokens, strict=True):
        start = microseconds(at_s)
        step = steps.around(start)
        if step is not None:
            found.append(Span("piece", start, max(start, step[1]), {"tokens": count}))
    return found


def cut(spans: Iterable[Span], into: Sequence[Span], *, is_split: bool) -> Iterator[Span]:
    """The spans cut at the ends of `into`, without what lies in none of them. With `is_split` what goes on in the next
    one is a span of its own, else it is left out: a step ends a little after the token that ends the prefill."""
    for span in spans:
        for outer in into:
            start, end = max(span.start_us, outer.start_us), min(span.end_us, outer.end_us)
            if start < end:
                name = "computed again" if span.name == "piece" and outer.name == "decode" else span.name
                yield Span(name, start, end, span.args)
                if not is_split:
                    break


def apart(spans: Iterable[Span]) -> list[Span]:
    """In order, each cut back to where the next begins."""
    ordered = sorted(spans, key=lambda span: (span.start_us, span.end_us))
    limits = [later.start_us for later in ordered[1:]] + [span.end_us for span in ordered[-1:]]
    ends = [min(span.end_us, limit) for span, limit in zip(ordered, limits, strict=True)]
    return [Span(span.name, span.start_us, end, span.args) for span, end in zip(ordered, ends, strict=True)]


class Lanes:
    """Gives spans that overlap different lanes, the lowest that is free; spans must come by their start."""

    def __init__(self) -> None:
        self.count = 0
        """Lanes so far"""
        self._free: list[int] = []
        self._taken: list[tuple[int, int]] = []

    def take(self, start_us: int, end_us: int) -> int:
        while self._taken and self._taken[0][0] <= start_us:
            heapq.heappush(self._free, heapq.heappop(self._taken)[1])
        if self._free:
            lane = heapq.heappop(self._free)
        else:
            lane, self.count = self.count, self.count + 1
        # A span without length keeps its lane past its own moment, or the next one would nest in it.
        heapq.heappush(self._taken, (max(end_us, start_us + 1), lane))
        return lane


def request_events(rows: Sequence[Row], steps: StepTimes) -> list[Event]:
    """Track names, then all events by time."""
    lives = sorted(((row, phases(row)) for row in rows), key=lambda life: (life[0]["arrival_s"], life[0]["request_id"]))
    is_packed = len(lives) > MAX_TRACKS
    events = _packed(lives, steps) if is_packed else _each_its_own(lives, steps)
    names = [event for event in events if event.phase == "M"]
    return names + sorted((event for event in events if event.phase != "M"), key=lambda event: event.order)


def _each_its_own(lives: Sequence[tuple[Row, list[Span]]], steps: StepTimes) -> list[Event]:
    events: list[Event] = []
    for at, (row, found) in enumerate(lives):
        thread = LANES[REQUESTS] + at
        events += thread_names(REQUESTS, thread, f"request {row['request_id']}")
        events += _life(row, found, REQUESTS, thread, steps)
    return events


def _packed(lives: Sequence[tuple[Row, list[Span]]], steps: StepTimes) -> list[Event]:
    events: list[Event] = []
    for process, name, part in ((QUEUE, "waiting", slice(0, 1)), (REQUESTS, "served", slice(1, 3))):
        lanes = Lanes()
        parts = [(row, found[part], found) for row, found in lives if process == QUEUE or len(found) > 1]
        for row, found, whole in sorted(parts, key=lambda life: _start(*life[:2])):
            start = _start(row, found)
            lane = LANES[process] + lanes.take(start, found[-1].end_us if found else start)
            events += _life(row, found, process, lane, steps, is_end=found[-1:] == whole[-1:])
        for lane in range(lanes.count):
            events += thread_names(process, LANES[process] + lane, f"{name} {lane}")
    return events


def _start(row: Row, found: Sequence[Span]) -> int:
    return found[0].start_us if found else microseconds(row["arrival_s"])


def _life(
    row: Row, found: Sequence[Span], process: int, thread: int, steps: StepTimes, *, is_end: bool = True
) -> Iterator[Event]:
    """The request around its phases, these, and what lies in them; where it was not served, a mark that says why."""
    name, identity = f"request {row['request_id']}", {"request_id": row["request_id"]}
    args = identity | {key: row[key] for key in ARGUMENTS if row.get(key) is not None}
    start, end = _start(row, found), found[-1].end_us if found else _start(row, found)
    yield Event("X", name, start, process, thread, args, end - start, category="request")
    for phase in found:
        length = phase.end_us - phase.start_us
        if length:  # one without would be put into what begins with it, or outside of the request that ends with it
            yield Event("X", phase.name, phase.start_us, process, thread, identity, length, category="phase", depth=1)
    inner = [
        *cut(pauses(row, end), found, is_split=True),
        *cut(pieces(row, steps), found, is_split=False),
    ]
    for at, span in enumerate(apart(inner)):
        length, is_pause = span.end_us - span.start_us, "tokens" not in span.args
        kind = "preemption" if is_pause else "piece"
        yield Event(
            "X", span.name, span.start_us, process, thread, identity | span.args, length, category=kind, depth=2
        )
        if is_pause:
            yield from _arrow(row, span, process, thread, steps, at)
    if is_end and row["finish_reason"] in ("rejected", "error"):
        yield Event("i", row["finish_reason"], end, process, thread, args, category="request")


def _arrow(row: Row, pause: Span, process: int, thread: int, steps: StepTimes, at: int) -> Iterator[Event]:
    """From the step that took the blocks to the pause; needs a slice with a length at both ends."""
    step = steps.around(pause.start_us)
    if step is None or step[0] == step[1] or pause.start_us == pause.end_us:
        return
    number = row["request_id"] * 4096 + at % 4096
    yield Event("s", "preemption", step[0], ENGINE, ENGINE, category="preemption", id=number)
    yield Event("f", "preemption", pause.start_us, process, thread, category="preemption", id=number)
