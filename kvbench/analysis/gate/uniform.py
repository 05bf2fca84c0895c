"""The one suite-wide test: has everything become a little slower?"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kvbench.analysis.gate.examine import problems
from kvbench.analysis.gate.statistics import log_ratios, paired
from kvbench.analysis.gate.types import CaseBlocks, Rule, UniformVerdict, Verdict

LEAST_CASES = 5


def judge_uniform(cases: Sequence[CaseBlocks], rule: Rule, noise: float) -> UniformVerdict | None:
    """t test over the blocks of the mean log ratio of the cases: what cases share in a block (a busy machine) is then
    part of the error. `noise` is the mean effect that unchanged code showed (relative). None where fewer than five
    cases have `least_blocks` blocks.

    The suite fails where the mean is shown to be worse and it and the middle case are ≥ 0.5 % (or `noise`) worse,
    though each case is within its margin; one slow case among many is not enough.
    """
    known = [log_ratios(case) for case in cases if not problems(case)]
    known = [ratios for ratios in known if ratios.size >= rule.least_blocks]
    if len(known) < LEAST_CASES:
        return None
    blocks = min(ratios.size for ratios in known)
    differences = np.array([ratios[:blocks] for ratios in known])
    test = paired(differences.mean(axis=0)[None, :])
    middle = np.median(differences.mean(axis=1))
    margin = np.log1p(max(rule.uniform_margin, noise))
    verdict = Verdict.PASS
    if test.p_worse[0] <= rule.alpha_uniform and min(test.theta[0], middle) >= margin:
        verdict = Verdict.FAIL
    elif test.p_better[0] <= rule.alpha_uniform and max(test.theta[0], middle) <= -margin:
        verdict = Verdict.IMPROVED
    return UniformVerdict(
        verdict=verdict,
        cases=len(known),
        blocks=blocks,
        effect=float(np.expm1(test.theta[0])),
        low=float(np.expm1(test.lower(0.025)[0])),
        high=float(np.expm1(test.upper(0.025)[0])),
        p_worse=float(test.p_worse[0]),
        p_better=float(test.p_better[0]),
    )
