"""What all numba kernels share: compile options, threads, and the count of compiled variants.

Threading layer: OpenMP where it can be loaded, because numba then shares torch's own worker threads (4 threads in the
process either way, an empty parallel region costs 3 µs). numba's `workqueue` starts its own: 82 µs a region, and 16 ms
now and then when both run. A process that has run a kernel must not fork (GNU OpenMP aborts the child); spawn instead.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

PARALLEL_ELEMENTS = 32_768
"""Elements read or written below which one thread is as quick: about 10 µs of work."""
_kernels: list[Any] = []
cache_folder: Path | None = None
"""Set when the first kernel file is imported."""


def kernel(**options: Any) -> Any:
    """`numba.njit` with the package's options for what Python launches; counted by `compiled_variants`."""

    def compile_later(function: Any) -> Any:
        dispatcher = helper(cache=True, nogil=True, **options)(function)
        _kernels.append(dispatcher)
        return dispatcher

    return compile_later


def helper(**options: Any) -> Any:
    """`numba.njit` for what kernels call; compiled into them, so it has no cache of its own."""
    return _numba().njit(error_model="numpy", **options)


def compiled_variants() -> int:
    """Compiled signatures of all launched kernels so far, loaded from the disk cache or compiled now."""
    return sum(len(dispatcher.signatures) for dispatcher in _kernels)


def set_threads(count: int) -> None:
    """Threads of every later launch; `ValueError` beyond what numba was started with (`NUMBA_NUM_THREADS`)."""
    numba = _numba()
    if not 1 <= count <= numba.config.NUMBA_NUM_THREADS:
        raise ValueError(f"{count} threads asked for; numba has 1 to {numba.config.NUMBA_NUM_THREADS} here")
    numba.set_num_threads(count)


def parts(elements: int) -> int:
    """Threads that this much work is worth; 1 means no parallel region."""
    return 1 if elements < PARALLEL_ELEMENTS else int(_numba().get_num_threads())


def threading_layer() -> str:
    """`omp`, `tbb` or `workqueue` once a parallel kernel has run, else `not started`."""
    if "numba" not in sys.modules:
        return "not started"
    try:
        return str(_numba().threading_layer())
    except ValueError:
        return "not started"


def _numba() -> Any:
    """numba with our cache folder and threading layer set."""
    global cache_folder
    if cache_folder is None:
        from kvbench_kernels.cache import use_cache

        cache_folder = use_cache()
        import numba

        numba.config.THREADING_LAYER_PRIORITY = ["omp", "tbb", "workqueue"]
    return sys.modules["numba"]
