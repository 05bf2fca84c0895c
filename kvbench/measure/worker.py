"""The worker process: `python -m kvbench.measure.worker` reads one job from stdin and measures its cases in order.

Events go out on what was stdout; whatever a library prints lands on stderr instead. When stdin closes, the sweep
that started this process is gone and so is the reason to go on.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import TYPE_CHECKING

from kvbench.errors import KvbenchError
from kvbench.measure.job import (
    FATAL,
    FINISHED,
    POISONED,
    READY,
    STARTED,
    THREAD_VARIABLES,
    UNWRITABLE,
    CaseJob,
    Event,
    WorkerJob,
)

if TYPE_CHECKING:
    from kvbench.measure.bench import Bench


class Outbox:
    """Where events are written; a lock, because progress comes from inside the engine's loop."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lock = threading.Lock()

    def send(self, kind: str, case_id: str = "", **data: object) -> None:
        line = Event(kind, case_id, data).to_line().encode()
        with self._lock:
            while line:
                line = line[os.write(self._descriptor, line) :]


def main() -> int:
    """The whole life of a worker; the exit code."""
    outbox = Outbox(os.dup(1))
    os.dup2(2, 1)
    job = WorkerJob.from_json(_read_line())
    threading.Thread(target=_stop_with_parent, daemon=True).start()
    for name in THREAD_VARIABLES:
        os.environ[name] = str(job.threads)
    start = time.perf_counter()
    from kvbench.measure.bench import Bench, PoisonedContextError

    try:
        bench = Bench(job, outbox.send)
    except Exception as error:
        outbox.send(FATAL, error=f"{type(error).__name__}: {error}")
        raise
    outbox.send(READY, seconds=time.perf_counter() - start)
    for case in job.cases:
        try:
            _measure(bench, case, outbox)
        except PoisonedContextError:
            outbox.send(POISONED, case.case_id)
            return 0
        except KvbenchError as error:  # the part could not be written: nobody could go on
            outbox.send(UNWRITABLE, case.case_id, error=error.message, hint=error.hint)
            return 0
    return 0


def _measure(bench: Bench, case: CaseJob, outbox: Outbox) -> None:
    outbox.send(STARTED, case.case_id, sample=case.sample)
    start = time.perf_counter()
    status, headline = bench.measure(case)
    outbox.send(
        FINISHED, case.case_id, sample=case.sample, status=status, seconds=time.perf_counter() - start, **headline
    )
    bench.raise_if_poisoned()


def _read_line() -> str:
    """The job, read from the raw descriptor: a daemon thread that sits in `sys.stdin` would abort interpreter exit."""
    text = b""
    while not text.endswith(b"\n"):
        chunk = os.read(0, 1 << 16)
        if not chunk:
            raise SystemExit("no job on standard input; this module is started by `kvbench sweep`")
        text += chunk
    return text.decode()


def _stop_with_parent() -> None:
    """The sweep holds our stdin open as long as it lives."""
    while os.read(0, 1 << 10):
        continue
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
