"""When requests arrive: whole nanoseconds, so that a workload's digest does not hang on the last bit of a logarithm."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvbench.errors import UsageError
from kvbench.workload.draws import uniforms

Nanoseconds = NDArray[np.int64]

MAX_NS = 2**62
"""146 years: the largest time that is kept, from either side of zero."""


def all_at_once(count: int) -> Nanoseconds:
    """`[count]` arrivals at 0."""
    return np.zeros(count, dtype=np.int64)


def poisson(count: int, rate: float, seed: int) -> Nanoseconds:
    """`[count]` arrivals, the first at 0, with exponential gaps of mean `1 / rate` seconds."""
    with np.errstate(over="ignore"):
        gaps = np.rint(-np.log1p(-uniforms(seed, "arrival", count)) * 1e9 / rate)
    gaps[:1] = 0.0
    if not float(gaps.sum()) < MAX_NS:
        raise UsageError(
            f"arrival.rate = {rate:g} spreads {count:,} requests over centuries", hint="raise arrival.rate"
        )
    return np.cumsum(gaps.astype(np.int64))


def scaled(arrivals: Nanoseconds, factor: float) -> Nanoseconds:
    """Recorded arrivals × `factor`."""
    if factor == 1.0:
        return arrivals
    with np.errstate(invalid="ignore", over="ignore"):
        times = np.rint(arrivals * factor)
    if not float(times.max(initial=0.0)) < MAX_NS:
        raise UsageError(f"scale_time = {factor:g} spreads the trace over centuries", hint="use a smaller scale_time")
    return np.asarray(times, dtype=np.int64)
