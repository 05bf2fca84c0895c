"""Randomised regression trees (Geurts, Ernst & Wehenkel 2006), compiled: a surrogate that is fitted in milliseconds.

Small samples of a space with ranks, products and switches are what trees are good at; the spread between trees says
where the surrogate does not know.
"""

from __future__ import annotations

from typing import NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class Forest(NamedTuple):
    """Arrays `[trees, nodes]`; `feature` −1 marks a leaf."""

    feature: NDArray[np.int32]
    threshold: Floats
    left: NDArray[np.int32]
    right: NDArray[np.int32]
    value: Floats


def fit(x: Floats, y: Floats, *, trees: int, tries: int, seed: int) -> Forest:
    """Trees over bootstrap samples of `x` `[n, f]` and `y` `[n]`; a node tries so many features with a random cut."""
    return Forest(*_fit(x, y, trees, tries, seed))


def predict(forest: Forest, x: Floats) -> tuple[Floats, Floats]:
    """Mean and standard deviation over the trees for each row of `x` `[n, f]`."""
    mean, deviation = _predict(x, *forest)
    return mean, deviation


@numba.njit(cache=True)  # type: ignore[misc, unused-ignore]
def _fit(x, y, trees, tries, seed):  # type: ignore[no-untyped-def]
    """Nodes are split in the order in which they are made; the rows of a node are `rows[begins:ends]`."""
    n, features = x.shape
    most = 2 * n + 1
    feature = np.full((trees, most), -1, np.int32)
    threshold = np.zeros((trees, most))
    left, right = np.zeros((trees, most), np.int32), np.zeros((trees, most), np.int32)
    value = np.zeros((trees, most))
    rows, spare = np.empty(n, np.int64), np.empty(n, np.int64)
    begins, ends = np.empty(most, np.int64), np.empty(most, np.int64)
    np.random.seed(seed)
    for tree in range(trees):
        for i in range(n):  # a bootstrap sample
            rows[i] = np.random.randint(n)
        begins[0], ends[0], nodes, node = 0, n, 1, 0
        while node < nodes:
            begin, end = begins[node], ends[node]
            count, total, squares = end - begin, 0.0, 0.0
            for i in range(begin, end):
                total += y[rows[i]]
                squares += y[rows[i]] ** 2
            value[tree, node] = total / count
            # The split that gains most among `tries` features that vary here, each cut at random.
            best, chosen, cut, tried = 1e-12, -1, 0.0, 0
            if count > 1 and squares - total * total / count > 1e-12:
                for _ in range(4 * tries):
                    if tried == tries:
                        break
                    f = np.random.randint(features)
                    low, high = np.inf, -np.inf
                    for i in range(begin, end):
                        low, high = min(low, x[rows[i], f]), max(high, x[rows[i], f])
                    if high <= low:
                        continue
                    tried += 1
                    at = low + np.random.random() * (high - low)
                    below, below_total = 0, 0.0
                    for i in range(begin, end):
                        if x[rows[i], f] <= at:
                            below += 1
                            below_total += y[rows[i]]
                    above = count - below
                    if below == 0 or above == 0:
                        continue
                    rest = total - below_total
                    gain = below_total**2 / below + rest**2 / above - total * total / count
                    if gain > best:
                        best, chosen, cut = gain, f, at
            if chosen >= 0:  # rows below the cut first, the others behind, both in their order
                a, b = begin, 0
                for i in range(begin, end):
                    if x[rows[i], chosen] <= cut:
                        rows[a] = rows[i]
                        a += 1
                    else:
                        spare[b] = rows[i]
                        b += 1
                for i in range(b):
                    rows[a + i] = spare[i]
                feature[tree, node], threshold[tree, node] = chosen, cut
                left[tree, node], right[tree, node] = nodes, nodes + 1
                begins[nodes], ends[nodes], begins[nodes + 1], ends[nodes + 1] = begin, a, a, end
                nodes += 2
            node += 1
    return feature, threshold, left, right, value


@numba.njit(cache=True)  # type: ignore[misc, unused-ignore]
def _predict(x, feature, threshold, left, right, value):  # type: ignore[no-untyped-def]
    trees = feature.shape[0]
    mean, deviation = np.zeros(x.shape[0]), np.zeros(x.shape[0])
    for i in range(x.shape[0]):
        total, squares = 0.0, 0.0
        for tree in range(trees):
            node = 0
            while feature[tree, node] >= 0:
                is_left = x[i, feature[tree, node]] <= threshold[tree, node]
                node = left[tree, node] if is_left else right[tree, node]
            total += value[tree, node]
            squares += value[tree, node] ** 2
        mean[i] = total / trees
        deviation[i] = np.sqrt(max(0.0, squares / trees - mean[i] ** 2))
    return mean, deviation
