"""How far a fitted model is off on each case that it was fitted on, over all of the case's steps."""

from __future__ import annotations

import math
from statistics import fmean
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from kvbench.analysis.fit import FittedRuns


def errors_of(found: FittedRuns) -> dict[tuple[str, str], float]:
    """(run, case) → ln(measured / predicted) of its throughput: of the seconds of its steps the other way round, mean
    over samples. A fit has a score of coefficients and tens of thousands of steps, so a case sways its own error
    little; errors enter a decision only as differences between cases of one workload."""
    by_case: dict[tuple[str, str], list[float]] = {}
    for part in found.parts:
        for sample, residuals in zip(part.samples, part.fit.residuals, strict=True):
            predicted = float(np.sum(sample.seconds / (1.0 + residuals)))
            by_case.setdefault(sample.case, []).append(math.log(predicted / float(sample.seconds.sum())))
    return {case: fmean(values) for case, values in by_case.items()}
