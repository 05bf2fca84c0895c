"""A trial process as the tuner holds it: one question, one answer, a time limit for each. Torch-free.

A process that hangs is killed, one that dies is noticed; the next question goes to a fresh one.
"""

from __future__ import annotations

import json
import os
import re
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from tempfile import TemporaryFile
from typing import IO, Any, Self

from kvbench.errors import CannotRunError
from kvbench.measure.job import THREAD_VARIABLES

PREPARE_TIMEOUT_S = 180.0
_COMPILER_GAVE_UP = re.compile(rb"LLVM ERROR|PassManager|(llvm|mlir|triton)[^\n]*Assertion", re.IGNORECASE)
"""As an abort in LLVM, and a failed assertion of its C++, are printed"""


class UntunableError(CannotRunError):
    """Nothing can be tried for one shape; others may do."""


@dataclass(frozen=True, slots=True)
class Bench:
    """What every process of a tuning prepares: kernel, shape, device, seed, threads."""

    tunable: str
    shape: Mapping[str, Any]
    device: str
    seed: int
    threads: int


class Child:
    """`ask` starts a process when there is none. Use as a context manager, so that none is left behind."""

    def __init__(self, bench: Bench, command: Sequence[str] | None = None) -> None:
        self._bench = bench
        self._command = list(command or (sys.executable, "-m", "kvbench.tune.worker"))
        self._process: subprocess.Popen[bytes] | None = None
        self._errors: IO[bytes] | None = None
        self._buffer = b""
        self._said_before = 0
        """Bytes on its stderr when the last request went out"""
        self.bytes_per_call = 0
        self.started = 0
        """Processes so far"""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def ask(self, request: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        """The answer; `status` is `timeout` when none came in time, `compile` or `runtime` when the process died.

        Raises `UntunableError` when the shape cannot be prepared at all."""
        if self._process is None:
            self._start()
        answer = self._exchange(request, timeout_s)
        if answer.pop("is_poisoned", False):
            self.stop()
        return answer

    def stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            for stream in (process.stdin, process.stdout, self._errors):
                with suppress(BrokenPipeError):
                    if stream is not None:
                        stream.close()

    def _start(self) -> None:
        bench = self._bench
        environment = {**os.environ, **{name: str(bench.threads) for name in THREAD_VARIABLES}}
        self._errors = TemporaryFile()  # noqa: SIM115 - closed by stop
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=environment,
            start_new_session=True,
        )
        self._buffer = b""
        self.started += 1
        facts = {"tunable": bench.tunable, "shape": dict(bench.shape), "device": bench.device, "seed": bench.seed}
        answer = self._exchange({"op": "prepare", **facts, "threads": bench.threads}, PREPARE_TIMEOUT_S)
        if "bytes_per_call" not in answer:
            self.stop()
            raise UntunableError(f"a trial process could not prepare the shape: {answer.get('error')}")
        self.bytes_per_call = int(answer["bytes_per_call"])

    def _exchange(self, request: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        assert self._process is not None
        assert self._process.stdin is not None
        phase = "start"
        self._said_before = _size(self._errors)
        with suppress(BrokenPipeError):  # it may be dead already: its end of file says so below
            self._process.stdin.write((json.dumps(request) + "\n").encode())
            self._process.stdin.flush()
        for message in self._messages(time.monotonic() + timeout_s):
            if message is None:
                self.stop()
                return {"status": "timeout", "error": f"no answer within {timeout_s:g} s ({phase})", "phase": phase}
            phase = message.get("phase", phase)
            if "result" in message:
                return dict(message["result"])
        return self._died(phase)

    def _messages(self, deadline: float) -> Iterator[dict[str, Any] | None]:
        """Messages until the process closes its output; None once when the deadline has passed."""
        assert self._process is not None
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        with selectors.DefaultSelector() as selector:
            selector.register(descriptor, selectors.EVENT_READ)
            while True:
                *lines, self._buffer = self._buffer.split(b"\n")
                for line in lines:
                    with suppress(ValueError):  # not ours: a library that prints to the wrong place
                        yield json.loads(line)
                if not selector.select(timeout=max(0.0, deadline - time.monotonic())):
                    yield None
                    return
                chunk = os.read(descriptor, 1 << 16)
                if not chunk:
                    return
                self._buffer += chunk

    def _died(self, phase: str) -> dict[str, Any]:
        assert self._process is not None
        code = self._process.wait()
        how = f"exit code {code}" if code >= 0 else _signal_name(-code)
        words = _last_words(self._errors)
        is_compilers = phase == "compile" or _is_a_compilers(self._errors, self._said_before)
        self.stop()
        status = "compile" if is_compilers else "runtime"
        return {"status": status, "error": f"the process died ({how}) in phase {phase}{words}", "phase": phase}


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _is_a_compilers(errors: IO[bytes] | None, begin: int) -> bool:
    """Whether what was printed from `begin` on says that the compiler gave up: Triton compiles at the first launch."""
    said = os.pread(errors.fileno(), _size(errors) - begin, begin) if errors is not None else b""
    return _COMPILER_GAVE_UP.search(said) is not None


def _size(errors: IO[bytes] | None) -> int:
    return 0 if errors is None else os.fstat(errors.fileno()).st_size


def _last_words(errors: IO[bytes] | None) -> str:
    """The last line of its stderr: one, not the hundreds that a compiler may leave."""
    if errors is None:
        return ""
    size = errors.seek(0, os.SEEK_END)
    errors.seek(max(0, size - 4000))
    lines = errors.read().decode(errors="replace").strip().splitlines()
    return f": {lines[-1].strip()[:300]}" if lines else ""
