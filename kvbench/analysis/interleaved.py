"""From the run folders of a gate's blocks to what the rules judge: one value per case, metric, side and block."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from kvbench.analysis.sides import Side, all_defaults, chosen_metrics, metrics_of_case, read_side
from kvbench.analysis.stored import StoredCase, blocks_of_case
from kvbench.store.comparability import compare_manifests

if TYPE_CHECKING:
    from kvbench.analysis.gate.types import CaseBlocks, Floats
    from kvbench.store.run import Run


def interleaved_blocks(
    baseline: Sequence[Run],
    candidate: Sequence[Run],
    *,
    order: Sequence[int],
    metrics: Sequence[str] = (),
    vary: Sequence[str] = (),
) -> list[CaseBlocks]:
    """`baseline[r]` and `candidate[r]` are the runs of block r, each with one sample of every case; `order[r]` is +1
    where the baseline was measured first. A case that did not end ok in a block has NaN there, which the rules call
    INVALID; one that fits on neither side is left out."""
    names = [column.name for column in chosen_metrics(metrics)]
    sides = [[read_side(run, names or all_defaults()) for run in runs] for runs in (baseline, candidate)]
    first, second = sides
    found = []
    for case in _cases(baseline[0], candidate[0], vary):
        if first[0].never_tried(case.left) and second[0].never_tried(case.right):
            continue
        ids = [case.left] * len(first) + [case.right] * len(second)
        for metric in metrics_of_case(case.kind, names, (*first, *second), ids):
            drifting = _drifting(case, first, second)
            blocks = blocks_of_case(
                case, metric, _values(first, case.left, metric), _values(second, case.right, metric), drifting
            )
            found.append(replace(blocks, order=np.array(order, dtype=np.int8)))
    return found


def _cases(left: Run, right: Run, vary: Sequence[str]) -> list[StoredCase]:
    """Cases of both sides, then those of one, which have values on one side only."""
    shared = compare_manifests(left.manifest, right.manifest, vary=vary, is_stored=False)
    planned = {case["case_id"]: case for run in (right, left) for case in run.plan["cases"]}
    pairs = [(pair.left, pair.right) for pair in shared.pairs]
    pairs += [(case_id, case_id) for case_id in (*shared.left_only, *shared.right_only)]
    return [
        StoredCase(one, other, str(planned[one].get("kind", "engine")), str(planned[one].get("label") or one))
        for one, other in pairs
    ]


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
