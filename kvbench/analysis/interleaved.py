"""From the run folders of a gate's blocks to what the rules judge: one value per case, metric, side and block."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from kvbench.analysis.sides import Side, all_defaults, chosen_metrics, metrics_of_case, read_side
from kvbench.analysis.stored import StoredCase, blocks_of_case

if TYPE_CHECKING:
    from kvbench.analysis.gate.types import CaseBlocks, Floats
    from kvbench.store.run import Run


def interleaved_blocks(
    cases: Sequence[StoredCase],
    baseline: Sequence[Run],
    candidate: Sequence[Run],
    *,
    order: Sequence[int],
    metrics: Sequence[str] = (),
) -> list[CaseBlocks]:
    """`baseline[r]` and `candidate[r]` are the runs of block r, each with one sample of every case; `order[r]` is +1
    where the baseline was measured first. A case that did not end ok in a block has NaN there, which the rules call
    INVALID; one that fits on neither side is left out."""
    names = [column.name for column in chosen_metrics(metrics)]
    first, second = ([read_side(run, names or all_defaults()) for run in runs] for runs in (baseline, candidate))
    found = []
    for case in cases:
        if first[0].never_tried(case.left) and second[0].never_tried(case.right):
            continue
        ids = [case.left] * len(first) + [case.right] * len(second)
        drifting = _drifting(case, first, second)
        for metric in metrics_of_case(case.kind, names, (*first, *second), ids):
            values = _values(first, case.left, metric), _values(second, case.right, metric)
            blocks = blocks_of_case(case, metric, *values, drifting)
            found.append(replace(blocks, order=np.array(order, dtype=np.int8)))
    return found


def _values(sides: Sequence[Side], case_id: str, metric: str) -> Floats:
    """One value per block; empty where no block of this side knows the case."""
    if not any(side.samples(case_id) for side in sides):
        return np.zeros(0)
    found = [next(iter(side.values(case_id, metric).values()), float("nan")) for side in sides]
    return np.array(found, dtype=np.float64)


def _drifting(case: StoredCase, first: Sequence[Side], second: Sequence[Side]) -> float:
    """Share of the processes of both sides whose warm-up hit its cap."""
    shares = [side.share_warned(case.left, "not_stationary") for side in first]
    shares += [side.share_warned(case.right, "not_stationary") for side in second]
    return sum(shares) / len(shares)
