"""Requests of a recorded trace: scaled, clipped, sorted by arrival, with the sharing that the trace records."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from kvbench.errors import UsageError
from kvbench.workload.arrivals import Nanoseconds, scaled
from kvbench.workload.clipping import Clipper
from kvbench.workload.importers.read import Trace
from kvbench.workload.importers.rows import Link
from kvbench.workload.lengths import Drawn, draw_lengths
from kvbench.workload.priorities import draw_priorities
from kvbench.workload.request import Request, Segment
from kvbench.workload.sessions import client_think_times, clipped_draws, session_starts
from kvbench.workload.tokens import conversation_stream, recorded_stream
from kvbench.workload.types import ImportReport

if TYPE_CHECKING:
    from kvbench.spec.workload import WorkloadSettings

_NO_LINK = Link()


def recorded_requests(trace: Trace, settings: WorkloadSettings) -> tuple[list[Request], ImportReport]:
    """Requests in order of arrival, and the account of them."""
    _refuse_unknown_arrivals(trace, settings)
    scale = ratio(settings.scale_tokens)
    block = _scaled_block(trace.block_tokens, scale)
    drawn = draw_lengths(settings.output_tokens, settings.seed, "output", len(trace.rows))
    clipper = Clipper(settings)
    order, arrivals, out_of_order = _arrivals(trace, settings)
    builder = _Builder(trace, settings, scale, block, drawn, clipper)
    requests = builder.requests(order.tolist(), (arrivals / 1e9).tolist())
    return requests, ImportReport(
        source=trace.path,
        format=trace.format,
        sha256=trace.sha256,
        rows_read=trace.rows_read,
        rows_kept=len(requests),
        dropped=dict(sorted(trace.dropped.items())),
        clipped_inputs=clipper.inputs,
        clipped_outputs=clipper.outputs,
        clipped_draws=clipped_draws(output_tokens=drawn) if builder.drawn_outputs else {},
        drawn_outputs=builder.drawn_outputs,
        out_of_order=out_of_order,
        limit=settings.limit,
        scale_time=settings.scale_time if settings.arrival.kind == "recorded" else 1.0,
        scale_tokens=str(scale),
        sharing="none" if block is None else "recorded",
        sharing_block_tokens=block,
    )


def ratio(value: float) -> Fraction:
    """The simple fraction that a person meant by 0.0625 or 0.1, else the float's exact value."""
    simple = Fraction(value).limit_denominator(1_000_000_000)
    return simple if abs(float(simple) - value) <= 1e-12 * value else Fraction(value)


def scaled_tokens(tokens: int, scale: Fraction) -> int:
    """⌈tokens · scale⌉, so at least 1 and never fewer blocks than the trace has."""
    return -(-tokens * scale.numerator // scale.denominator)


class _Builder:
    """Makes one request per kept row."""

    def __init__(
        self,
        trace: Trace,
        settings: WorkloadSettings,
        scale: Fraction,
        block: int | None,
        drawn: Drawn,
        clipper: Clipper,
    ) -> None:
        self.drawn_outputs = 0
        self._trace = trace
        self._settings = settings
        self._scale = scale
        self._block = block or 0
        self._drawn = drawn.tokens
        self._clipper = clipper
        self._pauses = client_think_times(settings, len(trace.rows))
        self._is_forced = settings.outputs == "forced"
        self._whole_blocks: dict[int, Segment] = {}
        self._sessions: dict[int | str, int] = {}
        self._priorities = draw_priorities(settings, len(trace.rows))
        self._roots: dict[int, int] = {}

    def requests(self, order: list[int], arrivals_s: list[float]) -> list[Request]:
        """Requests numbered by `order`, the kept rows sorted by arrival."""
        place = {at: number for number, at in enumerate(order)} if self._trace.follows else {}
        return [self._request(number, at, arrivals_s[number], place) for number, at in enumerate(order)]

    def _request(self, number: int, at: int, arrival_s: float, place: dict[int, int]) -> Request:
        row = self._trace.rows[at]
        link = row.link or _NO_LINK
        private = conversation_stream(self._trace.numbers[at])
        inputs = self._clipper.input(scaled_tokens(row.input_tokens, self._scale))
        outputs = self._clipper.output(self._output(row.output_tokens, at))
        before = self._trace.follows.get(at)
        return Request(
            request_id=number,
            input_tokens=inputs,
            output_tokens=outputs,
            prompt=(Segment(private, 0, inputs),) if row.hash_ids is None else self._blocks(row.hash_ids, inputs),
            arrival_s=arrival_s,
            output=(Segment(private, inputs, outputs),) if self._is_forced else None,
            after=None if before is None else place[before],
            think_time_s=self._pauses[number] if before is None else link.think_time_s,
            session_id=self._session(link.session_id),
            salt=link.salt,
            priority=self._priority(at, link.priority),
        )

    def _priority(self, at: int, recorded: int | None) -> int:
        """The recorded one, else that drawn for the row with which the conversation begins."""
        if len(self._settings.priorities) == 1:
            return recorded or 0
        before = self._trace.follows.get(at)
        root = self._roots[at] = at if before is None else self._roots[before]
        return self._priorities[root] if recorded is None else recorded

    def _output(self, recorded: int | None, at: int) -> int:
        if recorded is not None:
            return scaled_tokens(recorded, self._scale)
        self.drawn_outputs += 1
        return int(self._drawn[at])

    def _blocks(self, hash_ids: list[int], length: int) -> tuple[Segment, ...]:
        """Whole blocks, then the front of the last one: the same tokens as in a fuller block of that id (M58)."""
        whole, rest = divmod(length, self._block)
        segments = [self._whole_block(hash_id) for hash_id in hash_ids[:whole]]
        if rest:
            segments.append(Segment(recorded_stream(hash_ids[whole]), 0, rest))
        return tuple(segments)

    def _whole_block(self, hash_id: int) -> Segment:
        segment = self._whole_blocks.get(hash_id)
        if segment is None:
            segment = self._whole_blocks[hash_id] = Segment(recorded_stream(hash_id), 0, self._block)
        return segment

    def _session(self, name: int | str | None) -> int | None:
        return None if name is None else self._sessions.setdefault(name, len(self._sessions))


def _arrivals(trace: Trace, settings: WorkloadSettings) -> tuple[NDArray[np.int64], Nanoseconds, int]:
    """Kept rows in order of arrival, their arrivals from 0 on, and how many rows stood behind a later one."""
    times = recorded_times(trace)
    out_of_order = int(np.count_nonzero(times < np.maximum.accumulate(times)))
    order = np.argsort(times, kind="stable")
    if settings.arrival.kind == "recorded":
        arrivals = times[order]
        return order, scaled(arrivals - arrivals[0], settings.scale_time), out_of_order
    arrivals = _replaced_times(trace, settings, order)
    order = order[np.argsort(arrivals[order], kind="stable")]
    return order, arrivals[order], out_of_order


def recorded_times(trace: Trace) -> Nanoseconds:
    """`[rows]` nanoseconds; a row that follows another is never earlier than it, and 0 stands for "not recorded"."""
    if not trace.has_arrivals:
        return np.zeros(len(trace.rows), dtype=np.int64)
    times = [row.arrival_ns or 0 for row in trace.rows]
    for at, before in trace.follows.items():
        own = trace.rows[at].arrival_ns
        times[at] = times[before] if own is None else max(own, times[before])
    return np.array(times, dtype=np.int64)


def _replaced_times(trace: Trace, settings: WorkloadSettings, order: NDArray[np.int64]) -> Nanoseconds:
    """Fresh arrivals in the recorded order; a row that follows another begins with its conversation."""
    starts = [at for at in order.tolist() if at not in trace.follows]
    times = np.zeros(len(trace.rows), dtype=np.int64)
    times[starts] = session_starts(settings, len(starts))
    for at, before in trace.follows.items():
        times[at] = times[before]
    return times


def _scaled_block(block_tokens: int | None, scale: Fraction) -> int | None:
    if block_tokens is None:
        return None
    block = block_tokens * scale
    if block.denominator != 1:
        raise UsageError(
            f"scale_tokens = {scale} cuts the trace's blocks of {block_tokens} tokens into {float(block):g}",
            hint=f"use a ratio that leaves whole tokens, as in 1/{_nearest_divisor(block_tokens, scale)}",
        )
    return int(block)


def _nearest_divisor(block_tokens: int, scale: Fraction) -> int:
    divisors = [n for n in range(1, min(block_tokens, 100_000) + 1) if block_tokens % n == 0]
    return min(divisors, key=lambda n: abs(Fraction(1, n) - scale))


def _refuse_unknown_arrivals(trace: Trace, settings: WorkloadSettings) -> None:
    if settings.arrival.kind == "recorded" and not trace.has_arrivals:
        raise UsageError(
            f'{trace.path} does not record when every request arrived, and arrival.kind = "recorded" needs that',
            hint="say how requests arrive: -a arrival.kind=all-at-once, or -a arrival.kind=poisson -a rate=2 "
            "(per second); in a suite, workload.arrival",
        )
