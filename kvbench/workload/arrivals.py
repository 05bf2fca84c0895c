"""When requests arrive: whole nanoseconds, so that a workload's digest does not hang on the last bit of a logarithm."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvbench.errors import UsageError
from kvbench.workload.draws import Floats, exponentials, gammas

Nanoseconds = NDArray[np.int64]

MAX_NS = 2**62
"""146 years: the largest time that is kept, from either side of zero."""


def all_at_once(count: int) -> Nanoseconds:
    """`[count]` arrivals at 0."""
    return np.zeros(count, dtype=np.int64)


def poisson(count: int, rate: float, seed: int) -> Nanoseconds:
    """`[count]` arrivals, the first at 0, with exponential gaps of mean `1 / rate` seconds."""
    return _after_gaps(exponentials(seed, "arrival", count), rate)


def gamma(count: int, rate: float, burstiness: float, seed: int) -> Nanoseconds:
    """`[count]` arrivals with gamma gaps of mean `1 / rate` seconds and coefficient of variation `burstiness`, that is
    of shape 1 / burstiness²: 1 is Poisson, above it requests come in bursts."""
    return _after_gaps(gammas(seed, 1.0 / burstiness**2, count), rate)


def constant(count: int, rate: float) -> Nanoseconds:
    """`[count]` arrivals, one every `1 / rate` seconds."""
    _require_sane(count, count / rate * 1e9, rate)
    return np.asarray(np.rint(np.arange(count) * (1e9 / rate)), dtype=np.int64)


def _after_gaps(means: Floats, rate: float) -> Nanoseconds:
    """Arrivals, the first at 0, from gaps in units of their mean."""
    with np.errstate(over="ignore"):
        gaps = np.rint(means * 1e9 / rate)
    gaps[:1] = 0.0
    _require_sane(len(gaps), float(gaps.sum()), rate)
    return np.cumsum(gaps.astype(np.int64))


def _require_sane(count: int, last_ns: float, rate: float) -> None:
    if not last_ns < MAX_NS:
        raise UsageError(
            f"arrival.rate = {rate:g} spreads {count:,} requests over centuries", hint="raise arrival.rate"
        )


def scaled(arrivals: Nanoseconds, factor: float) -> Nanoseconds:
    """Recorded arrivals × `factor`."""
    if factor == 1.0:
        return arrivals
    with np.errstate(invalid="ignore", over="ignore"):
        times = np.rint(arrivals * factor)
    if not float(times.max(initial=0.0)) < MAX_NS:
        raise UsageError(f"scale_time = {factor:g} spreads the trace over centuries", hint="use a smaller scale_time")
    return np.asarray(times, dtype=np.int64)
