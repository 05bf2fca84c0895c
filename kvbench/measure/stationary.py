"""When warm-up is over: the two halves of a trailing window agree, autocorrelation counted. Torch-free."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

TOLERANCE = 0.005
WINDOW = 20


def lag1(values: ArrayLike) -> float:
    """Lag-1 autocorrelation, 0 for fewer than three values or a constant series."""
    x = np.asarray(values, dtype=np.float64)
    centred = x - x.mean() if len(x) else x
    power = float(centred @ centred)
    if len(x) < 3 or power == 0.0:
        return 0.0
    return float(centred[1:] @ centred[:-1]) / power


def standard_error(values: NDArray[np.float64]) -> float:
    """Standard error of the mean with the effective sample size n·(1−ρ)/(1+ρ) of an AR(1) series, ρ ≥ 0."""
    n = len(values)
    if n < 2:
        return float("inf")
    rho = min(max(lag1(values), 0.0), 0.99)
    effective = max(n * (1 - rho) / (1 + rho), 1.0)
    return float(values.std(ddof=1) / np.sqrt(effective))


def is_stationary(times: ArrayLike, window: int = WINDOW) -> bool:
    """Whether the halves of the last `window` values differ by no more than max(0.5 %, two standard errors)."""
    tail = np.asarray(times, dtype=np.float64)[-window:]
    if len(tail) < window:
        return False
    older, newer = tail[: window // 2], tail[window // 2 :]
    allowed = max(TOLERANCE * tail.mean(), 2 * float(np.hypot(standard_error(older), standard_error(newer))))
    return bool(abs(newer.mean() - older.mean()) <= allowed)
