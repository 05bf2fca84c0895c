"""Priority classes: which class each conversation belongs to, where the workload has more than one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvbench.workload.draws import uniforms
from kvbench.workload.lengths import pick

if TYPE_CHECKING:
    from kvbench.spec.workload import WorkloadSettings


def draw_priorities(settings: WorkloadSettings, count: int) -> list[int]:
    """`count` priorities: class i with the i-th share; with one class all are 0 and nothing is drawn."""
    shares = np.array(settings.priorities, dtype=np.float64)
    if len(shares) == 1:
        return [0] * count
    classes: list[int] = pick(shares, uniforms(settings.seed, "priority", count)).tolist()
    return classes
