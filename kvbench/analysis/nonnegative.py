"""Non-negative regression that outliers do not move, over groups of rows that are resampled whole.

Minimised is Σ over samples of Σ (y − p)² / (p · Y): the squared relative error of every row, weighted by its share of
its sample's total Y, so that samples count alike and a second counts alike wherever it was spent. Rows far off lose
weight (Huber 1964, iteratively reweighted least squares); the solution is by non-negative least squares (Lawson and
Hanson 1974) on the triangular factors of the samples, so that leaving a sample out, or drawing it twice, is a sum of a
few small matrices. Afterwards all coefficients are multiplied by the median over samples of (total measured / total
predicted): a median step is shorter than a mean one, and what a workload takes is the sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kvbench.errors import DataError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

ROUNDS = 12
HUBER = 1.0
"""Residuals beyond so many deviations (1.4826 · median absolute deviation) are outliers."""
FLOOR = 1e-4
"""No relative deviation is taken to be smaller: data without noise have outliers of rounding only."""


@dataclass(frozen=True, slots=True)
class Rows:
    """One sample: terms `[n, k]` and seconds `[n]`."""

    terms: Floats
    seconds: Floats


@dataclass(frozen=True, slots=True)
class Fit:
    """Coefficients `[k]`, and of each sample what makes it possible to fit without it: its triangular factor
    `[k + 1, k + 1]`, its sums of terms `[k]` and its total seconds."""

    coefficients: Floats
    factors: Sequence[Floats]
    sums: Floats
    totals: Floats
    scales: Floats
    residuals: Sequence[Floats]
    """(measured − predicted) / predicted of every row, by sample"""


def fit(samples: Sequence[Rows]) -> Fit:
    """Fit all samples. Terms that are nowhere above 0 get the coefficient 0."""
    largest = np.max([rows.terms.max(axis=0) for rows in samples], axis=0)
    scales = np.where(largest > 0, largest, 1.0)
    predicted = [np.maximum(rows.seconds, 1e-9) for rows in samples]
    weights = [np.ones(len(rows.seconds)) for rows in samples]
    factors: list[Floats] = []
    for _ in range(ROUNDS):
        factors = [_factor(rows, p, w, scales) for rows, p, w in zip(samples, predicted, weights, strict=True)]
        solution = _solve(factors, np.ones(len(factors)))
        predicted = [_predicted(rows, solution / scales) for rows in samples]
        weights = _huber(samples, predicted)
    sums = np.array([rows.terms.sum(axis=0) for rows in samples])
    totals = np.array([rows.seconds.sum() for rows in samples])
    found = Fit(np.empty(0), factors, sums, totals, scales, [])
    coefficients = resampled(found, np.ones(len(samples)))
    residuals = [rows.seconds / _predicted(rows, coefficients) - 1.0 for rows in samples]
    return Fit(coefficients, factors, sums, totals, scales, residuals)


def resampled(of: Fit, times: Floats) -> Floats:
    """`[k]` coefficients with every sample counted so many `times`; outliers stay what they were."""
    solution = _solve(of.factors, times) / of.scales
    chosen = np.repeat(np.arange(len(times)), times.astype(int))
    ratios = of.totals[chosen] / np.maximum(of.sums[chosen] @ solution, 1e-30)
    return solution * float(np.median(ratios))


def bootstrap(of: Fit, draws: int, seed: int = 0) -> Floats:
    """`[draws, k]` coefficients of samples drawn with replacement: the process is what is drawn, never a step."""
    rng = np.random.default_rng(seed)
    count = len(of.factors)
    chosen = rng.multinomial(count, np.full(count, 1.0 / count), size=draws).astype(np.float64)
    return np.array([resampled(of, times) for times in chosen])


def _factor(rows: Rows, predicted: Floats, weights: Floats, scales: Floats) -> Floats:
    """R of the weighted rows, terms and seconds side by side: all that least squares ever needs of them."""
    root = np.sqrt(weights / (predicted * rows.seconds.sum()))
    table = np.concatenate([rows.terms / scales, rows.seconds[:, np.newaxis]], axis=1) * root[:, np.newaxis]
    return _triangle(table)


def _solve(factors: Sequence[Floats], times: Floats) -> Floats:
    from scipy.optimize import nnls

    stacked = np.concatenate([f * np.sqrt(t) for f, t in zip(factors, times, strict=True) if t > 0])
    table = _triangle(stacked)
    try:
        solution: Floats = nnls(table[:, :-1], table[:, -1], maxiter=100 * table.shape[1])[0]
    except (RuntimeError, ValueError) as error:
        raise DataError(
            f"no fit was found: {error}", hint="steps that contradict each other, or damaged runs"
        ) from None
    return solution


def _triangle(table: Floats) -> Floats:
    """R of the QR factorisation."""
    return np.asarray(np.linalg.qr(table, mode="r"), dtype=np.float64)


def _predicted(rows: Rows, coefficients: Floats) -> Floats:
    """Never 0, even where no coefficient is left."""
    found: Floats = np.maximum(rows.terms @ coefficients, 1e-3 * rows.seconds.min())
    return found


def _huber(samples: Sequence[Rows], predicted: Sequence[Floats]) -> list[Floats]:
    off = [rows.seconds / p - 1.0 for rows, p in zip(samples, predicted, strict=True)]
    everything = np.concatenate(off)
    spread = max(1.4826 * float(np.median(np.abs(everything - np.median(everything)))), FLOOR)
    return [np.minimum(1.0, HUBER * spread / np.maximum(np.abs(r), 1e-12)) for r in off]
