"""Rules that other tools use, for comparison: each says of every row of two samples [k, n] whether it calls a slowdown.

A larger value is worse. None of them knows of the other cases.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from kvbench.analysis.gate.statistics import Bools
from kvbench.analysis.gate.types import Floats

Rule = Callable[[Floats, Floats], Bools]

_ALPHA = 0.05
_CRITERION_NOISE = 0.01
_RESAMPLES = 1000
_ROWS = 64
"""Rows resampled at once"""


def u_test(baseline: Floats, candidate: Floats) -> Bools:
    """Mann-Whitney U, two-sided 5 %, and the larger median: as benchstat judges a delta. Exact where no two values are
    equal, else by the normal approximation."""
    from scipy.stats import mannwhitneyu

    both = np.sort(np.concatenate([baseline, candidate], axis=1), axis=1)
    tied = (np.diff(both, axis=1) == 0).any(axis=1)
    p = np.ones(len(baseline))
    for rows, method in ((tied, "asymptotic"), (~tied, "exact")):
        if rows.any():
            p[rows] = mannwhitneyu(baseline[rows], candidate[rows], axis=1, method=method).pvalue
    worse: Bools = (p < _ALPHA) & (np.median(candidate, axis=1) > np.median(baseline, axis=1))
    return worse


def welch_t(baseline: Floats, candidate: Floats) -> Bools:
    """Welch's t test of the means, two-sided 5 %."""
    from scipy.special import stdtr

    t, df = _welch(baseline, candidate)
    worse: Bools = 2.0 * stdtr(df, -np.abs(t)) < _ALPHA
    return worse & (t > 0)


def mean_5(baseline: Floats, candidate: Floats) -> Bools:
    """The mean is more than 5 % above: what alert thresholds of CI actions do."""
    worse: Bools = candidate.mean(axis=1) > 1.05 * baseline.mean(axis=1)
    return worse


def mean_10(baseline: Floats, candidate: Floats) -> Bools:
    """The mean is more than 10 % above."""
    worse: Bools = candidate.mean(axis=1) > 1.10 * baseline.mean(axis=1)
    return worse


def criterion(baseline: Floats, candidate: Floats) -> Bools:
    """Criterion.rs: the bootstrapped 95 % interval of the relative change of the mean lies above its noise threshold
    of 1 %, and a bootstrapped t test of the pooled values says p < 5 %. Seeded, 1,000 resamples."""
    rng = np.random.default_rng(0)
    found = np.zeros(len(baseline), dtype=bool)
    for start in range(0, len(baseline), _ROWS):
        rows = slice(start, start + _ROWS)
        a, b = baseline[rows], candidate[rows]
        ratios = _resampled(rng, b, b.shape[1]).mean(axis=-1) / _resampled(rng, a, a.shape[1]).mean(axis=-1)
        above = np.quantile(ratios - 1.0, 0.025, axis=1) > _CRITERION_NOISE
        found[rows] = above
        found[np.flatnonzero(above) + start] = _bootstrapped_p(rng, a[above], b[above]) < _ALPHA
    return found


def _bootstrapped_p(rng: np.random.Generator, a: Floats, b: Floats) -> Floats:
    """Two-sided p of Welch's t under resampling from both samples put together."""
    t, _ = _welch(a, b)
    pooled = np.concatenate([a, b], axis=1)
    drawn, _ = _welch(_resampled(rng, pooled, a.shape[1]), _resampled(rng, pooled, b.shape[1]))
    share = (drawn < t[:, None]).mean(axis=1)
    return np.asarray(2.0 * np.minimum(share, 1.0 - share))


def _resampled(rng: np.random.Generator, values: Floats, size: int) -> Floats:
    """[k, resamples, size], with replacement within each row; the same places for all rows."""
    places = rng.integers(values.shape[1], size=(_RESAMPLES, size))
    return values[:, places]


def _welch(a: Floats, b: Floats) -> tuple[Floats, Floats]:
    """(t, degrees of freedom) over the last axis; b larger is t > 0. Rows without any variance have t 0 or ±inf."""
    errors = [x.var(axis=-1, ddof=1) / x.shape[-1] for x in (a, b)]
    total = errors[0] + errors[1]
    gap = b.mean(axis=-1) - a.mean(axis=-1)
    with np.errstate(divide="ignore", invalid="ignore"):
        t = np.where(gap == 0.0, 0.0, gap / np.sqrt(total))
        df = total**2 / sum(e**2 / (x.shape[-1] - 1) for e, x in zip(errors, (a, b), strict=True))
    return t, np.where(total > 0.0, df, 1.0)


BASELINES: dict[str, Rule] = {
    "u-test": u_test,
    "welch-t": welch_t,
    "mean+5%": mean_5,
    "mean+10%": mean_10,
    "criterion": criterion,
}
