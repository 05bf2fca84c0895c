"""One worker process under watch: its events, its time limit, its end. Torch-free.

A worker that hangs is killed, one that dies is noticed, and the cases it had not reached go to a fresh one, so
that a bad case costs itself and nothing else.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from tempfile import TemporaryFile
from typing import IO, Literal

from kvbench.errors import CannotRunError
from kvbench.measure.job import FATAL, FINISHED, POISONED, REDONE, STARTED, UNWRITABLE, CaseJob, Event, WorkerJob

START_TIMEOUT_S = 180.0
_TAIL_BYTES = 4000


@dataclass(frozen=True, slots=True)
class Lost:
    """A case whose worker did not live to report it."""

    case: CaseJob
    status: Literal["timeout", "crash"]
    error: str


OnEvent = Callable[[Event], None]
OnLost = Callable[[Lost], None]


def worker_command() -> list[str]:
    """The command that starts a worker with this very interpreter."""
    return [sys.executable, "-m", "kvbench.measure.worker"]


def run_worker(
    job: WorkerJob,
    on_event: OnEvent,
    on_lost: OnLost,
    *,
    command: Sequence[str] | None = None,
    environment: dict[str, str] | None = None,
) -> int:
    """Measure all cases of the job, in as many worker processes as it takes; returns how many were started.

    `on_lost` is called for a case that hung (`timeout`) or took its process with it (`crash`). Raises
    `CannotRunError` when a worker cannot write its results (disk full, folder gone).
    """
    pending = list(job.cases)
    started = 0
    while pending:
        started += 1
        done, lost = _one_process(
            replace(job, cases=pending), on_event, list(command or worker_command()), environment or dict(os.environ)
        )
        if lost is not None:
            on_lost(lost)
            done.add(lost.case.case_id)
        pending = [case for case in pending if case.case_id not in done]
    return started


@dataclass(slots=True)
class _Watch:
    """Where one worker is in its list, and until when it may stay silent."""

    cases: list[CaseJob]
    done: set[str] = field(default_factory=set)
    limit_s: float = 0.0
    deadline: float = 0.0

    @property
    def current(self) -> CaseJob:
        return next((case for case in self.cases if case.case_id not in self.done), self.cases[-1])

    def note(self, event: Event) -> None:
        """A finished case may be followed by set-up of the next, so only a started one has its own limit;
        one that is taken again has it once more."""
        if event.kind == FINISHED:
            self.done.add(event.case_id)
        if event.kind in (FINISHED, STARTED, REDONE):
            self.allow(self.current.timeout_s + (START_TIMEOUT_S if event.kind == FINISHED else 0.0))

    def allow(self, seconds: float) -> None:
        self.limit_s = seconds
        self.deadline = time.monotonic() + seconds

    def lost(self, status: Literal["timeout", "crash"], error: str) -> Lost:
        return Lost(self.current, status, error)


def _one_process(
    job: WorkerJob, on_event: OnEvent, command: list[str], environment: dict[str, str]
) -> tuple[set[str], Lost | None]:
    """Run one process until it ends; the ids it finished, and the case it was lost in, if any."""
    watch = _Watch(job.cases)
    watch.allow(START_TIMEOUT_S + watch.current.timeout_s)
    with _spawned(command, environment, job) as (process, errors):
        for event in _events(process, lambda: watch.deadline):
            if event is None:
                return watch.done, watch.lost("timeout", f"no result within {watch.limit_s:.0f} s; worker stopped")
            on_event(event)
            watch.note(event)
            if event.kind == POISONED and watch.done:
                return watch.done, None
            if event.kind == UNWRITABLE:
                raise CannotRunError(str(event.data.get("error")), hint=event.data.get("hint"))
            if event.kind == FATAL:
                return watch.done, watch.lost("crash", str(event.data.get("error", "the worker could not start")))
        code = process.wait()
        if code == 0 and len(watch.done) == len(job.cases):
            return watch.done, None
        return watch.done, watch.lost("crash", f"the worker {_how_it_died(code)}{_last_words(errors)}")


@contextmanager
def _spawned(
    command: list[str], environment: dict[str, str], job: WorkerJob
) -> Iterator[tuple[subprocess.Popen[bytes], IO[bytes]]]:
    """The worker in a session of its own (a Ctrl-C at the terminal is ours to handle); killed on the way out.

    Its standard input stays open: when this process dies, the worker reads end-of-file and stops as well.
    """
    with TemporaryFile() as errors:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=environment,
            start_new_session=True,
        )
        try:
            assert process.stdin is not None
            with suppress(BrokenPipeError):  # it may have died at once: its exit code says so later
                process.stdin.write(job.to_json().encode() + b"\n")
                process.stdin.flush()
            yield process, errors
        finally:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with suppress(BrokenPipeError):
                stream.close()


def _events(process: subprocess.Popen[bytes], deadline: Callable[[], float]) -> Iterator[Event | None]:
    """Events until the worker closes its output; None once when the deadline has passed."""
    assert process.stdout is not None
    buffer = b""
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while True:
            if not selector.select(timeout=max(0.0, deadline() - time.monotonic())):
                yield None
                return
            chunk = os.read(process.stdout.fileno(), 1 << 16)
            if not chunk:
                return
            *lines, buffer = (buffer + chunk).split(b"\n")
            for line in lines:
                event = Event.from_line(line.decode(errors="replace"))
                if event is not None:
                    yield event


def _how_it_died(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def _last_words(errors: IO[bytes]) -> str:
    size = errors.seek(0, os.SEEK_END)
    errors.seek(max(0, size - _TAIL_BYTES))
    lines = errors.read().decode(errors="replace").strip().splitlines()
    return f": {lines[-1].strip()}" if lines else ""
