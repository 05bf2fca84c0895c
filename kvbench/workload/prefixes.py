"""Shared system prompts: which group each session belongs to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from kvbench.errors import UsageError
from kvbench.workload.draws import uniforms
from kvbench.workload.lengths import pick
from kvbench.workload.request import Segment
from kvbench.workload.tokens import prefix_stream

if TYPE_CHECKING:
    from kvbench.spec.workload import SharedPrefixes

_MAX_GROUPS = 10_000_000


def draw_groups(prefix: SharedPrefixes, seed: int, count: int) -> NDArray[np.int64] | None:
    """`[count]` group numbers, group g with weight (g + 1)^−zipf; None when nothing is shared."""
    if prefix.groups == 0:
        return None
    if prefix.groups > _MAX_GROUPS:
        raise UsageError(f"prefix.groups = {prefix.groups:,} is more than {_MAX_GROUPS:,}")
    ranks = np.arange(1, prefix.groups + 1, dtype=np.float64)
    return pick(ranks**-prefix.zipf, uniforms(seed, "prefix", count))


def prefix_segment(prefix: SharedPrefixes, group: int) -> Segment:
    """The system prompt of one group."""
    return Segment(prefix_stream(group), 0, prefix.tokens)
