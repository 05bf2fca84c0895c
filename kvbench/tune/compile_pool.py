"""Compiles in child processes, several at once, each within a time limit. Torch-free, and Triton is not imported here.

Triton takes a second to import, so a worker compiles one job after another. One that hangs is killed, one that takes
its process with it (an abort in LLVM, a failed assertion in C++) is replaced, and the job's outcome says so in one
line; what the compiler printed (often hundreds of lines of IR) is written to the log where one is given, and dropped
where none is.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from tempfile import TemporaryDirectory, TemporaryFile
from types import MappingProxyType
from typing import IO, Any, Literal

from kvbench.console import plain
from kvbench.errors import CannotRunError
from kvbench.tune.resources import Resources
from kvbench_kernels.specs import CompileSpec

Status = Literal["compiled", "compile_error", "timeout", "crashed"]
START_TIMEOUT_S = 180.0
_LONGEST_REASON = 300
_TELLING = ("LLVM ERROR", "Assertion", "error:", "Fatal", "fatal")


@dataclass(frozen=True, slots=True)
class CompileJob:
    """One compile for the architecture `arch` (90 for sm_90); `options` go to Triton beside warps and stages."""

    spec: CompileSpec
    arch: int
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one compile: `resources` where it compiled, one line of `reason` where it did not. `seconds` are
    from handing it to a worker, the disassembly included. The compiler's and the assembler's versions and whether it
    contracts multiplications and additions (a default that changes between versions) belong to the result."""

    status: Status
    seconds: float
    reason: str = ""
    resources: Resources | None = None
    triton: str = ""
    ptxas: str = ""
    fp_fusion: bool | None = None


OnDone = Callable[[int, Outcome], None]


def compile_all(
    jobs: Sequence[CompileJob],
    *,
    workers: int | None = None,
    timeout_s: float = 60.0,
    log: IO[bytes] | None = None,
    on_done: OnDone | None = None,
) -> list[Outcome]:
    """Compile every job, in any order; outcomes in the order of the jobs. `workers` None: one for each core.

    Raises `CannotRunError` where Triton cannot be imported.
    """
    wanted = min(workers or _cores(), len(jobs))
    with TemporaryDirectory(prefix="kvbench-compile-") as scratch:
        return _Pool(jobs, timeout_s, scratch, log, on_done).run(wanted)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class _Pool:
    def __init__(
        self, jobs: Sequence[CompileJob], timeout_s: float, scratch: str, log: IO[bytes] | None, on_done: OnDone | None
    ) -> None:
        self._jobs = jobs
        self._timeout_s = timeout_s
        self._scratch = scratch
        self._log = log
        self._on_done = on_done
        self._waiting = deque(range(len(jobs)))
        self._outcomes: dict[int, Outcome] = {}

    def run(self, wanted: int) -> list[Outcome]:
        workers: list[_Worker] = []
        try:
            while len(self._outcomes) < len(self._jobs):
                while len(workers) < min(wanted, len(self._jobs) - len(self._outcomes)):
                    workers.append(self._start())
                self._step(workers)
        finally:
            for worker in workers:
                worker.end()
        return [self._outcomes[at] for at in range(len(self._jobs))]

    def _start(self) -> _Worker:
        return _Worker(list(dict.fromkeys(job.spec.module for job in self._jobs)), self._scratch)

    def _step(self, workers: list[_Worker]) -> None:
        """Hand out work, wait for the next answer, death or deadline, and take the lost out of `workers`."""
        for worker in workers:
            if worker.is_idle and self._waiting:
                at = self._waiting.popleft()
                worker.give(at, self._jobs[at], self._timeout_s)
        now = time.monotonic()
        with selectors.DefaultSelector() as selector:
            for worker in workers:
                selector.register(worker.output, selectors.EVENT_READ, worker)
            due = min((worker.deadline for worker in workers), default=now)
            ready = [key.data for key, _ in selector.select(max(0.0, due - now))]
        for worker in ready:
            self._hear(worker)
        for worker in list(workers):
            if worker.has_ended or worker.deadline <= time.monotonic():
                workers.remove(worker)
                worker.end()
                self._lose(worker)

    def _hear(self, worker: _Worker) -> None:
        for answer in worker.answers():
            if "ready" in answer:
                worker.is_ready(str(answer["ready"]))
                continue
            found = answer.get("resources")
            reason = str(answer.get("reason", ""))
            if "PassManager" in reason:  # the diagnostic itself is only printed
                reason = f"{reason}: {worker.first_words()}"
            self._note(worker, answer["status"], reason, Resources(**found) if found else None, answer)

    def _lose(self, worker: _Worker) -> None:
        if not worker.triton:
            raise CannotRunError(
                f"Triton cannot be used here: {worker.last_words() or 'its process did not start'}",
                hint="compiling needs the triton package; it is built for Linux",
            )
        if worker.job is None:
            return
        if worker.has_ended:
            self._note(worker, "crashed", f"the compiler {worker.how_it_died()}: {worker.first_words()}")
        else:
            self._note(worker, "timeout", f"not compiled within {self._timeout_s:g} s")

    def _note(
        self,
        worker: _Worker,
        status: Status,
        reason: str,
        resources: Resources | None = None,
        by: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        at, seconds, printed = worker.take()
        said = plain(reason)[:_LONGEST_REASON]
        outcome = Outcome(status, seconds, said, resources, worker.triton, by.get("ptxas", ""), by.get("fp_fusion"))
        if self._log is not None and status != "compiled":
            self._log.write(f"== {at} {self._jobs[at].spec.constexprs}: {status}: {outcome.reason}\n".encode())
            self._log.write(printed + b"\n")
        self._outcomes[at] = outcome
        if self._on_done is not None:
            self._on_done(at, outcome)


class _Worker:
    """One child process: the job it has, until when, and what it printed since it was given it."""

    def __init__(self, modules: list[str], scratch: str) -> None:
        self.job: int | None = None
        self.triton = ""
        self.deadline = time.monotonic() + START_TIMEOUT_S
        self.has_ended = False
        self._printed = TemporaryFile()  # noqa: SIM115 - closed by end()
        self._from = 0
        self._given = 0.0
        self._buffer = b""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "kvbench.tune.compile_worker", *modules],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._printed,
            env=_environment(scratch),
            start_new_session=True,
        )

    @property
    def output(self) -> IO[bytes]:
        assert self._process.stdout is not None
        return self._process.stdout

    @property
    def is_idle(self) -> bool:
        return bool(self.triton) and self.job is None and not self.has_ended

    def is_ready(self, triton: str) -> None:
        self.triton, self.deadline = triton, float("inf")

    def give(self, at: int, job: CompileJob, timeout_s: float) -> None:
        self.job, self._given = at, time.monotonic()
        self.deadline = self._given + timeout_s
        self._from = os.fstat(self._printed.fileno()).st_size
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it died while idle: its closed output says so next
            self._process.stdin.write(_line(at, job))
            self._process.stdin.flush()

    def take(self) -> tuple[int, float, bytes]:
        """The job it is done with, the seconds that took, and what was printed meanwhile."""
        assert self.job is not None
        at, self.job, self.deadline = self.job, None, float("inf")
        return at, time.monotonic() - self._given, self._since()

    def answers(self) -> Iterator[dict[str, Any]]:
        chunk = os.read(self.output.fileno(), 1 << 16)
        self.has_ended = not chunk
        *lines, self._buffer = (self._buffer + chunk).split(b"\n")
        yield from map(json.loads, lines)

    def first_words(self) -> str:
        """The line that tells, of all that was printed during this job."""
        lines = [line.strip() for line in self._since().decode(errors="replace").splitlines() if line.strip()]
        return next((line for line in lines if any(word in line for word in _TELLING)), lines[0] if lines else "")

    def last_words(self) -> str:
        lines = self._since().decode(errors="replace").strip().splitlines()
        return lines[-1].strip() if lines else ""

    def how_it_died(self) -> str:
        code = self._process.wait()
        if code >= 0:
            return f"ended with exit code {code}"
        with suppress(ValueError):
            return f"was killed by {signal.Signals(-code).name}"
        return f"was killed by signal {-code}"

    def end(self) -> None:
        """Kill it, with the assembler it may have started."""
        if not self.has_ended:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with suppress(BrokenPipeError):
                    stream.close()

    def _since(self) -> bytes:
        end = os.fstat(self._printed.fileno()).st_size
        return os.pread(self._printed.fileno(), end - self._from, self._from)


def _environment(scratch: str) -> dict[str, str]:
    """Real compiles, whatever the caller does; its temporary files where they go away with the pool."""
    kept = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    path = os.pathsep.join(dict.fromkeys(part for part in (os.getcwd(), *sys.path) if part))
    return kept | {"TMPDIR": scratch, "TRITON_CACHE_DIR": scratch, "PYTHONPATH": path}


def _line(at: int, job: CompileJob) -> bytes:
    spec = job.spec
    told = {
        "job": at,
        "arch": job.arch,
        "module": spec.module,
        "function": spec.function,
        "signature": spec.signature,
        "constexprs": spec.constexprs,
        "divisible_by_16": list(spec.divisible_by_16),
        "options": {"num_warps": spec.num_warps, "num_stages": spec.num_stages, **job.options},
    }
    return json.dumps(told).encode() + b"\n"
