"""Tests of unchanged code that ask nothing of how cases depend on one another.

All cases of a block share the two processes of that block, and the metrics of one case move together, so the values of
a suite are far from independent draws. What holds for unchanged code whatever they share: the sides of a block might
as well have changed places, and the blocks might as well have come in another order. Both are done to whole blocks,
and what was seen is ranked among what could have been seen (randomisation tests: Edgington and Onghena 2007).
"""

from __future__ import annotations

from itertools import product

import numpy as np

from kvbench.analysis.gate.types import Floats

_MOST_EXCHANGES = 512
"""Ways to exchange sides that are looked at: all of them up to ten blocks"""
_ORDERS = 4999
_ROUNDING = 1e-9


def uniformity(differences: Floats) -> float:
    """p of the Kolmogorov distance between the cases' one-sided p values and the uniform distribution, among all
    exchanges of the sides of whole blocks. `differences` [cases, R] are log ratios of the blocks; NaN without any."""
    if differences.size == 0:
        return float("nan")
    distance = _distances(differences, _exchanges(differences.shape[-1]))
    return float((distance >= distance[0] - _ROUNDING).mean())


def _exchanges(blocks: int) -> Floats:
    """[ways, R] of ±1, the first all +1. The first block stays: to exchange all blocks changes no distance."""
    if 2 ** (blocks - 1) <= _MOST_EXCHANGES:
        return np.array([(1.0, *signs) for signs in product((1.0, -1.0), repeat=blocks - 1)])
    signs = np.random.default_rng(0).choice([1.0, -1.0], (_MOST_EXCHANGES, blocks))
    signs[0] = 1.0
    return signs


def _distances(differences: Floats, signs: Floats) -> Floats:
    """[ways] Kolmogorov distance of the p values of paired t tests."""
    from scipy.special import stdtr

    cases, blocks = differences.shape
    means = signs @ differences.T / blocks
    spread = np.maximum((differences**2).mean(axis=-1) - means**2, 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        t = np.where(means == 0.0, 0.0, means / np.sqrt(spread / (blocks - 1)))
    ranked = np.sort(stdtr(blocks - 1.0, t), axis=-1)
    steps = np.arange(cases + 1) / cases
    return np.asarray(np.maximum(steps[1:] - ranked, ranked - steps[:-1]).max(axis=-1))


def resemblance(differences: Floats) -> tuple[float, float]:
    """(mean over the cases of the correlation of a block with the block before, its bias of −1/R taken out; its
    one-sided p among random orders of whole blocks). (0, 1) where nothing varies."""
    if differences.size == 0:
        return 0.0, 1.0
    centred = differences - differences.mean(axis=-1, keepdims=True)
    total = (centred**2).sum(axis=-1)
    centred, total = centred[total > 0.0], total[total > 0.0]
    if total.size == 0:
        return 0.0, 1.0
    blocks = centred.shape[-1]
    shared = (centred / total[:, None]).T @ centred / total.size
    orders = np.random.default_rng(0).permuted(np.tile(np.arange(blocks), (_ORDERS, 1)), axis=-1)
    orders = np.concatenate([np.arange(blocks)[None], orders])
    found = shared[orders[:, 1:], orders[:, :-1]].sum(axis=-1)
    return float(found[0] + 1.0 / blocks), float((found >= found[0] - _ROUNDING).mean())
