"""The shared fronts of prompts that are recorded as block ids, of all requests at once: level by level, a sort each."""

from __future__ import annotations

import numpy as np

from kvbench.analysis.advice.lengths import Ints

_LONGER_THAN_ANY = 1 << 32


def block_fronts(ids: Ints, starts: Ints, order: Ints, inputs: Ints, block: int, spaces: Ints) -> Ints:
    """`[n]` tokens at the front of each prompt that an earlier one has, as `lost_hits.shared_fronts` finds them.

    Requests are in the order of service: the i-th has `inputs[i]` tokens in the blocks `ids[starts[j] : starts[j + 1]]`
    with j = `order[i]`, the last one perhaps partial: its front. Different `spaces` (`[n]`, a salt each) share nothing.
    """
    first, ends = starts[order], starts[order + 1]
    shared = np.zeros(len(inputs), dtype=np.int64)
    is_matching = np.ones(len(inputs), dtype=bool)
    rows, nodes = np.arange(len(inputs)), spaces
    depth = 0
    while len(rows):
        here = ids[first[rows] + depth]
        by = np.lexsort((here, nodes))
        rows, here, nodes = rows[by], here[by], nodes[by]
        sizes = np.minimum(block, inputs[rows] - depth * block)
        is_first = np.r_[True, (nodes[1:] != nodes[:-1]) | (here[1:] != here[:-1])]
        groups = np.cumsum(is_first) - 1
        longest = _longest_before(sizes, groups, is_first)
        shared[rows] += np.where(is_matching[rows], np.minimum(sizes, longest), 0)
        is_matching[rows] &= (sizes == block) & (longest == block)
        goes_on = (sizes == block) & (first[rows] + depth + 1 < ends[rows])
        goes_on &= np.bincount(groups[goes_on], minlength=len(rows))[groups] > 1
        back = np.argsort(rows[goes_on])
        rows, nodes = rows[goes_on][back], groups[goes_on][back]
        depth += 1
    return shared


def _longest_before(sizes: Ints, groups: Ints, is_first: Ints) -> Ints:
    """Of each row, the largest size before it in its group, 0 for the first one; groups follow one another."""
    largest = np.maximum.accumulate(groups * _LONGER_THAN_ANY + sizes)
    before = np.r_[0, largest[:-1]] - groups * _LONGER_THAN_ANY
    return np.where(is_first, 0, before)
