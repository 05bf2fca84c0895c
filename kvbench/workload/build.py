"""From settings to requests: the one door to a workload."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from kvbench.errors import UsageError
from kvbench.workload.digest import workload_digest
from kvbench.workload.importers.read import Trace, read_trace
from kvbench.workload.recorded import recorded_requests
from kvbench.workload.request import Request
from kvbench.workload.sessions import synthetic_requests
from kvbench.workload.types import ImportReport, Sharing, Workload

if TYPE_CHECKING:
    from kvbench.spec.workload import WorkloadSettings

__all__ = ["ImportReport", "Sharing", "Workload", "build_workload", "trace_of", "workload_from_trace"]


def build_workload(settings: WorkloadSettings, *, max_context: int | None = None) -> Workload:
    """The requests that the settings ask for, the same on every machine.

    Requests longer than `max_context` tokens are counted in the report and stay: the engine rejects them.
    """
    if settings.source == "trace":
        return workload_from_trace(trace_of(settings), settings, max_context=max_context)
    with _no_collection():
        return _finished(*synthetic_requests(settings), settings, max_context)


def trace_of(settings: WorkloadSettings) -> Trace:
    """The trace that the settings name, read and checked."""
    if settings.trace is None:
        raise UsageError('source = "trace" needs a trace', hint='give a file, as in workload.trace = "requests.csv"')
    with _no_collection():
        return read_trace(settings.trace, settings.format, settings.limit)


def workload_from_trace(trace: Trace, settings: WorkloadSettings, *, max_context: int | None = None) -> Workload:
    """The workload of a trace that has been read."""
    with _no_collection():
        return _finished(*recorded_requests(trace, settings), settings, max_context)


@contextmanager
def _no_collection() -> Iterator[None]:
    """Millions of small objects that all stay: the garbage collector would only walk them again and again."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _finished(
    requests: list[Request], report: ImportReport, settings: WorkloadSettings, max_context: int | None
) -> Workload:
    over = 0
    if max_context is not None:
        over = sum(request.input_tokens + request.output_tokens > max_context for request in requests)
    report = replace(report, over_context=over)
    report = replace(report, notes=tuple(_notes(report, settings, max_context)))
    clients = settings.arrival.clients if settings.arrival.kind == "closed-loop" else None
    digest = workload_digest(requests, settings.seed, clients)
    return Workload(tuple(requests), report, digest, settings.seed, clients)


def _notes(report: ImportReport, settings: WorkloadSettings, max_context: int | None) -> list[str]:
    """What changed the requests on their way in, one sentence each."""
    told = (
        *((count, f"rows were dropped: {reason}") for reason, count in sorted(report.dropped.items())),
        (report.out_of_order, "rows stood behind a later one and were sorted by arrival"),
        (report.clipped_inputs, f"prompts were clipped to {settings.max_input_tokens} tokens"),
        (report.clipped_outputs, f"outputs were clipped to {settings.max_output_tokens} tokens"),
        (report.drawn_outputs, "outputs were drawn, for the trace does not record them"),
        *((count, f"draws of {side}") for side, count in report.clipped_draws.items()),
        (report.over_context, f"requests are longer than the context of {max_context} tokens and will be rejected"),
    )
    notes = [f"{count:,} {what}" for count, what in told if count]
    if report.limit is not None and report.rows_kept == report.limit:
        notes.append(f"stopped after the first {report.limit:,} usable rows")
    if report.scale_tokens != "1":
        notes.append(f"lengths and hash blocks are scaled by {report.scale_tokens}")
    if report.scale_time != 1.0:
        notes.append(f"recorded arrivals are multiplied by {report.scale_time:g}")
    return notes
