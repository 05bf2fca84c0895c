"""Paired t on log ratios, Holm's step-down, the minimum detectable effect, Hodges-Lehmann.

Everything works on the last axis, so that one suite and a thousand simulated ones go through the same code.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvbench.analysis.gate.types import CaseBlocks, Floats
from kvbench.analysis.student import quantile

Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Paired:
    """A paired t test of each row; every array has the rows' shape. Logarithms throughout."""

    theta: Floats
    """Mean of the log ratios; > 0 is worse"""
    se: Floats
    df: Floats
    p_worse: Floats
    """One-sided: the chance of such a mean, or a larger one, without any change"""
    p_better: Floats

    def upper(self, chance: float) -> Floats:
        """The bound that the true value exceeds with this `chance`."""
        return self.theta + quantile(1.0 - chance, self.df) * self.se

    def lower(self, chance: float) -> Floats:
        """The bound that the true value falls short of with this `chance`."""
        return self.theta - quantile(1.0 - chance, self.df) * self.se


def log_ratios(case: CaseBlocks) -> Floats:
    """[R] log ratio of every block, > 0 where the candidate is worse."""
    ratios = np.log(case.candidate) - np.log(case.baseline)
    return ratios if case.worse == "higher" else -ratios


def paired(differences: Floats) -> Paired:
    """t test of the mean of the last axis [..., R] against 0, R ≥ 2. Blocks that are all equal have no error: any
    difference from 0 is then certain."""
    blocks = differences.shape[-1]
    theta = differences.mean(axis=-1)
    se = differences.std(axis=-1, ddof=1) / np.sqrt(blocks)
    return from_moments(theta, _without_rounding(se, differences), np.full(theta.shape, blocks - 1.0))


def from_moments(theta: Floats, se: Floats, df: Floats) -> Paired:
    """The same from means, standard errors and degrees of freedom."""
    from scipy.special import stdtr

    with np.errstate(divide="ignore", invalid="ignore"):
        t = np.where(theta == 0.0, 0.0, theta / se)
    return Paired(theta, se, df, stdtr(df, -t), stdtr(df, t))


def holm(p: Floats) -> Floats:
    """Holm's adjusted p of the last axis (Holm 1979): ≤ α for a case exactly where the step-down rejects it at
    family-wise α. NaN stays NaN and is not counted."""
    order = np.argsort(p, axis=-1)
    ranked = np.take_along_axis(p, order, axis=-1)
    count = (~np.isnan(p)).sum(axis=-1, keepdims=True)
    steps = np.maximum(count - np.arange(p.shape[-1]), 1)
    raised = np.maximum.accumulate(np.minimum(ranked * steps, 1.0), axis=-1)
    adjusted = np.empty_like(p)
    np.put_along_axis(adjusted, order, raised, axis=-1)
    return adjusted


def detectable(se: Floats, df: Floats, alpha: float, margin: Floats, power: float) -> Floats:
    """The true log ratio that is found with probability `power` by p ≤ alpha and mean ≥ margin (a logarithm).

    Quantiles of the noncentral t by the normal approximation of Johnson and Welch (1940).
    """
    from scipy.special import ndtri

    z = ndtri(power)
    critical = quantile(1.0 - alpha, df)
    by_p = critical + z * np.sqrt(1.0 + critical**2 / (2.0 * df))
    found: Floats = np.maximum(by_p * se, margin + quantile(power, df) * se)
    return found


def hodges_lehmann(differences: Floats) -> float:
    """Median of the means of all pairs of the R values, a value with itself included (Hodges and Lehmann 1963)."""
    rows, columns = np.triu_indices(differences.size)
    return float(np.median((differences[rows] + differences[columns]) / 2.0))


def order_effect(differences: Floats, order: NDArray[np.int8]) -> tuple[float, float]:
    """(half the difference between the orders' means, two-sided p); (0, 1) where an order has fewer than two
    blocks. Pooled t test: the half difference is what an unbalanced order could add to the mean."""
    if order.size != differences.size:
        return 0.0, 1.0
    first, second = differences[order > 0], differences[order < 0]
    if min(first.size, second.size) < 2:
        return 0.0, 1.0
    df = first.size + second.size - 2
    spread = first.var() * first.size + second.var() * second.size
    se = np.sqrt(spread / df * (1.0 / first.size + 1.0 / second.size))
    gap = first.mean() - second.mean()
    test = from_moments(np.array([abs(gap)]), _without_rounding(np.array([se]), differences), np.array([float(df)]))
    return float(gap / 2.0), float(min(2.0 * test.p_worse[0], 1.0)) if gap else 1.0


def _without_rounding(se: Floats, differences: Floats) -> Floats:
    """Equal blocks have no error, whatever rounding leaves of it."""
    scale = np.abs(differences).max(axis=-1, initial=0.0)
    return np.where(se <= 1e-14 * np.maximum(scale, 1e-3), 0.0, se)
