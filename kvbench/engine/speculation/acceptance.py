"""Which drafts become output.

The token of every verified row is chosen as in plain decoding: the likeliest, or drawn with the key of its output
index. A draft is accepted when it is that token; the first one that is not is replaced by it and ends the step. So the
tokens are exactly those of plain decoding, drawn ones included. It is the rule of speculative sampling (Leviathan et
al. 2023) for drafts that are a point mass: a draft x is accepted with probability p(x), and what replaces a rejected
one is distributed as p without x.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvbench.engine.speculation.drafts import spread

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvbench.cache.types import CacheManager, Int64s
    from kvbench.engine.decodes import DecodeSet
    from kvbench.engine.schedule import Schedule
    from kvbench.engine.speculation.drafts import Drafts


def leading(matches: NDArray[np.bool_], drafts: Drafts) -> Int64s:
    """[n] how many of each sequence's drafts match, up to the first that does not; `matches` `[sum of counts]`."""
    owners, offsets = spread(drafts.counts)
    table = np.zeros((len(drafts.counts), int(drafts.counts.max(initial=0))), bool)
    table[owners, offsets] = matches
    found: Int64s = np.logical_and.accumulate(table, axis=1).sum(axis=1)
    return found


def matching(sampled: Int64s, drafts: Drafts) -> NDArray[np.bool_]:
    """[sum of counts] whether the model chose each draft itself, after those before it."""
    owners, offsets = spread(drafts.rows)
    is_followed = offsets < drafts.counts[owners]
    same: NDArray[np.bool_] = sampled[is_followed] == drafts.tokens
    return same


def accept(
    step: Schedule, sampled: Int64s, now_s: float, decoding: DecodeSet, manager: CacheManager, drafts: Drafts
) -> Int64s:
    """Append what was accepted and cut the tables back to it; returns the tokens of the rows that are no decodes.

    Contents come first: a block that has become full is published with the tokens that it holds, and only then."""
    n, width = step.num_decodes, drafts.total + step.num_decodes
    right = leading(drafts.declared if drafts.declared is not None else matching(sampled[:width], drafts), drafts)
    ends = np.cumsum(drafts.rows)
    tokens = sampled[:width].tolist()
    chosen = [
        tokens[end - rows : end - rows + count + 1]
        for end, rows, count in zip(ends.tolist(), drafts.rows.tolist(), right.tolist(), strict=True)
    ]
    kept = decoding.append_several(chosen, now_s)
    computed = step.ends
    computed[:n] = step.starts[:n] + kept
    manager.mark_computed(step.rows, computed)
    for at in np.flatnonzero(kept < drafts.rows).tolist():
        manager.truncate(int(step.rows[at]), int(computed[at]))
        drafts.rollbacks += 1
    drafts.accepted = int(kept.sum()) - n
    for sequence, count, brought in zip(step.decoding, drafts.counts.tolist(), kept.tolist(), strict=True):
        sequence.draft_tokens += count
        sequence.accepted_tokens += brought - 1
    return sampled[width:]
