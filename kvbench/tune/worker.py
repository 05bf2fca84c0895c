"""The process that runs trials: `python -m kvbench.tune.worker` reads one request per line and answers each.

What can hang or crash happens here. Before every step that may, its name goes out (`phase`), so that whoever waits
knows in which one the process was lost. When stdin closes, the tuner is gone and so is this.
"""

from __future__ import annotations

import json
import math
import os
import queue
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvbench.tune.tunable import Configuration, Prepared

_COMPILER_MODULES = ("numba.core.errors", "triton.compiler", "triton.runtime.errors", "llvmlite")


class Workbench:
    """One shape's buffers, and what is done with a configuration on them."""

    def __init__(self, send: Callable[[str, Any], None]) -> None:
        self._send = send
        self._prepared: Prepared | None = None
        self._device = "cpu"
        self._query_dtype = "fp32"
        self._timer: Any = None

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        steps: dict[str, Callable[..., dict[str, Any]]] = {
            "prepare": self._prepare,
            "check": self._check,
            "time": self._time,
        }
        return steps[request.pop("op")](**request)

    def _prepare(self, tunable: str, shape: dict[str, Any], device: str, seed: int, threads: int) -> dict[str, Any]:
        _set_up(threads)
        from kvbench.measure.timers import timer_for
        from kvbench.tune.tunable import make_tunable
        from kvbench_kernels.specs import KernelShape

        self._send("phase", "prepare")
        kernel_shape = KernelShape(**shape)
        self._device, self._query_dtype = device, kernel_shape.query_dtype
        self._timer = timer_for(device, "hot")
        self._prepared = make_tunable(tunable).prepare(kernel_shape, device, seed)
        return {"bytes_per_call": self._prepared.bytes_per_call}

    def _check(self, configuration: Configuration) -> dict[str, Any]:
        """Compile, then every batch on an output full of NaN (K26) against what it should be."""
        from kvbench.tune.correctness import verdict

        prepared = self._ready()
        self._send("phase", "compile")
        start = time.perf_counter()
        prepared.compile(configuration)
        compiled = time.perf_counter()
        self._send("phase", "runtime")
        worst = 0.0
        for batch, (output, expected) in enumerate(zip(prepared.outputs, prepared.expected, strict=True)):
            output.fill_(float("nan"))
            prepared.launch(configuration, batch)
            self._settle()
            error, reason = verdict(output, expected, self._query_dtype)
            worst = max(worst, error)
            if reason is not None:
                return _failed("correctness", f"{'edge ' if batch else ''}batch: {reason}", error_rel=error)
        return {
            "status": "correct",
            "error_rel": worst,
            "compile_s": compiled - start,
            "check_s": time.perf_counter() - compiled,
        }

    def _time(self, configuration: Configuration, calls: int, min_s: float, max_s: float) -> dict[str, Any]:
        """At least `calls` calls and `min_s`, no further ones after `max_s`."""
        prepared = self._ready()
        self._send("phase", "runtime")
        times: list[float] = []
        begin = time.perf_counter()
        while len(times) < calls or sum(times) < min_s:
            times.append(self._timer(partial(prepared.launch, configuration)).device_s)
            if time.perf_counter() - begin > max_s:
                break
        if wrong := [seconds for seconds in times if not 0 < seconds < math.inf]:
            return _failed("runtime", f"the device's clock says that a call took {wrong[0]} s")
        return {"status": "correct", "times": times}

    def _settle(self) -> None:
        if self._device == "cuda":
            import torch

            torch.cuda.synchronize()

    def _ready(self) -> Prepared:
        if self._prepared is None:
            raise RuntimeError("no shape was prepared")
        return self._prepared


def _set_up(threads: int) -> None:
    """Threads and the kernel cache, as a sweep's worker has them."""
    import kvbench_kernels.cache
    from kvbench.paths import cache_dir

    kvbench_kernels.cache.use_cache(cache_dir() / "numba")
    import torch

    torch.set_num_threads(threads)
    kvbench_kernels.set_threads(threads)


def _failed(status: str, error: str, **numbers: Any) -> dict[str, Any]:
    return {"status": status, "error": error, **numbers}


def status_of(error: BaseException, phase: str) -> str:
    """`compile` for what a compiler refuses, whenever it does; else `runtime`."""
    is_compilers = type(error).__module__.startswith(_COMPILER_MODULES) or "PassManager" in str(error)
    return "compile" if phase == "compile" or is_compilers else "runtime"


def main() -> NoReturn:
    descriptor = os.dup(1)
    os.dup2(2, 1)  # whatever a library prints lands on stderr
    phase = "start"

    def send(kind: str, value: Any) -> None:
        nonlocal phase
        phase = value if kind == "phase" else phase
        line = (json.dumps({kind: value}) + "\n").encode()
        while line:
            line = line[os.write(descriptor, line) :]

    bench = Workbench(send)
    requests: queue.Queue[str] = queue.Queue()
    threading.Thread(target=_read, args=(requests,), daemon=True).start()
    while True:
        phase = "start"
        line = requests.get()
        try:
            found = bench.answer(json.loads(line))
        except Exception as error:  # a bad configuration is an answer, not an end
            text = " ".join(f"{type(error).__name__}: {error}".split())[:500]
            found = _failed(status_of(error, phase), text, phase=phase, is_poisoned=_is_poisoned(text))
        send("result", found)


def _read(requests: queue.Queue[str]) -> None:
    """Lines of the raw descriptor; at their end the tuner is gone, and a trial that hangs must not outlive it."""
    buffer = b""
    while chunk := os.read(0, 1 << 16):
        *lines, buffer = (buffer + chunk).split(b"\n")
        for line in lines:
            requests.put(line.decode())
    os._exit(1)


def _is_poisoned(text: str) -> bool:
    """A CUDA error other than memory leaves a context in which nothing works any more."""
    return "cuda error" in text.lower() or "acceleratorerror" in text.lower()


if __name__ == "__main__":
    main()
