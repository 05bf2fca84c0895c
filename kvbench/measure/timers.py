"""How one call is timed, and in which state of the caches: CUDA events or `perf_counter`, hot or flushed.

The device's time decides; the host's, from before the call until its result is there, stands beside it. On a CPU both
are one. A GPU's queue must not run dry between the two events, or the device's time holds the host's launch: before the
first event stands work that lasts longer than a launch does: a spin, because
a flush of a GPU's small cache may be over sooner.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import cycle
from typing import Any, NamedTuple

import torch

from kvbench.devices.host import Host

Call = Callable[[], object]
Timer = Callable[[Call], "Timing"]

FLUSH_FACTOR = 2
"""Bytes written by a flush, in sizes of the last-level cache: with less, a cache that replaces at random keeps some."""
UNKNOWN_CACHE_BYTES = 64 << 20
_fill: Any = torch.utils.deterministic
_set_deterministic: Any = torch._C._set_deterministic_algorithms
"""What `torch.use_deterministic_algorithms` calls, without its import of the whole compiler (1.4 s)"""
_SPIN_CYCLES = 400_000
"""About 0.2 ms at 2 GHz: longer than Python takes to launch a kernel."""


class Timing(NamedTuple):
    """Seconds of one call on the device, and as the host waited for it."""

    device_s: float
    host_s: float


class HostTimer:
    """`perf_counter` around a call that is over when it returns; `before` runs outside the window."""

    def __init__(self, before: Call | None = None) -> None:
        self._before = before

    def __call__(self, call: Call) -> Timing:
        if self._before is not None:
            self._before()
        start = time.perf_counter()
        call()
        elapsed = time.perf_counter() - start
        return Timing(elapsed, elapsed)


class CudaTimer:
    """CUDA events around a call; `before` and a spin are queued ahead of the first one."""

    def __init__(self, before: Call | None = None) -> None:
        self._before = before
        self._events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]

    def __call__(self, call: Call) -> Timing:
        start, end = self._events
        self._queue_work()
        start.record()
        call()
        end.record()
        end.synchronize()
        device_s = float(start.elapsed_time(end)) / 1e3
        return Timing(device_s, self._host_time(call))

    def _host_time(self, call: Call) -> float:
        """Of a second call: the first one's host time would hold the work ahead of it."""
        self._queue_work()
        torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        torch.cuda.synchronize()
        return time.perf_counter() - start

    def _queue_work(self) -> None:
        if self._before is not None:
            self._before()
        torch.cuda._sleep(_SPIN_CYCLES)


class CacheFlush:
    """Evicts the last-level cache by reading and writing a buffer of `FLUSH_FACTOR` times its size, with all threads
    that torch has: each core's own cache goes as well."""

    def __init__(self, device: str, cache_bytes: int | None = None) -> None:
        size = cache_bytes or last_level_cache_bytes(device) or UNKNOWN_CACHE_BYTES
        self.buffer = torch.zeros(FLUSH_FACTOR * size // 8, dtype=torch.int64, device=device)

    def __call__(self) -> None:
        self.buffer.add_(1)


def timer_for(device: str, buffers: str) -> Timer:
    """The device's timer; `l2-flushed` evicts the last-level cache before every call, outside the timed window."""
    flush = CacheFlush(device) if buffers == "l2-flushed" else None
    return CudaTimer(flush) if device == "cuda" else HostTimer(flush)


def last_level_cache_bytes(device: str) -> int | None:
    """Size of the cache that the timed data must not be found in; None where the system does not tell."""
    if device == "cuda":
        return int(getattr(torch.cuda.get_device_properties(0), "L2_cache_size", 0)) or None
    return Host().last_level_cache_bytes()


def rotating(calls: Sequence[Call]) -> Call:
    """One call after another, in a circle: no two calls in a row touch the same buffers."""
    turn = cycle(calls)
    return lambda: next(turn)()


@contextmanager
def poisoned_memory() -> Iterator[None]:
    """Whatever torch allocates meanwhile holds NaN (the largest value for integers) until it is written.

    Two configurations whose outputs land in one piece of memory could otherwise pass on each other's results."""
    before = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        _fill.fill_uninitialized_memory,
    )
    _set_deterministic(True, warn_only=True)
    _fill.fill_uninitialized_memory = True
    try:
        yield
    finally:
        _set_deterministic(before[0], warn_only=before[1])
        _fill.fill_uninitialized_memory = before[2]
