"""The one suite-wide test: has everything become a little slower?"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kvbench.analysis.gate.decide import CODES, FAIL, IMPROVED, PASS
from kvbench.analysis.gate.examine import problems
from kvbench.analysis.gate.statistics import Bools, Paired, log_ratios, paired
from kvbench.analysis.gate.types import CaseBlocks, Floats, Rule, UniformVerdict

LEAST_CASES = 5


def judge_uniform(cases: Sequence[CaseBlocks], rule: Rule, noise: float) -> UniformVerdict | None:
    """The test on what is sound among `cases`; `noise` is the mean effect that unchanged code showed (relative).
    None where fewer than five cases have `least_blocks` blocks."""
    known = [log_ratios(case) for case in cases if not problems(case)]
    known = [ratios for ratios in known if ratios.size >= rule.least_blocks]
    if len(known) < LEAST_CASES:
        return None
    blocks = min(ratios.size for ratios in known)
    differences = np.array([ratios[:blocks] for ratios in known])
    code, test = uniform(differences, np.ones(len(known), bool), rule, noise)
    return UniformVerdict(
        verdict=CODES[int(code)],
        cases=len(known),
        blocks=blocks,
        effect=float(np.expm1(test.theta)),
        low=float(np.expm1(test.lower(0.025))),
        high=float(np.expm1(test.upper(0.025))),
        p_worse=float(test.p_worse),
        p_better=float(test.p_better),
    )


def uniform(differences: Floats, counted: Bools, rule: Rule, noise: float = 0.0) -> tuple[Floats, Paired]:
    """(codes, t tests) of suites: `differences` [..., cases, R], `counted` [..., cases].

    t test over the blocks of the mean log ratio of the cases: what cases share in a block (a busy machine) is then part
    of the error. A suite fails where the mean is shown to be worse and it and the middle case are ≥ 0.5 % (or `noise`)
    worse, though each case is within its margin; one slow case among many is not enough.
    """
    kept = np.where(counted[..., None], differences, 0.0)
    test = paired(kept.sum(axis=-2) / np.maximum(counted.sum(axis=-1), 1)[..., None])
    middle = _median(differences.mean(axis=-1), counted)
    margin = np.log1p(max(rule.uniform_margin, noise))
    code = np.full(np.shape(test.theta), PASS)
    worse = (test.p_worse <= rule.alpha_uniform) & (np.minimum(test.theta, middle) >= margin)
    better = (test.p_better <= rule.alpha_uniform) & (np.maximum(test.theta, middle) <= -margin)
    enough = counted.sum(axis=-1) >= LEAST_CASES
    code = np.where(worse & enough, FAIL, np.where(better & enough, IMPROVED, code))
    return code, test


def _median(means: Floats, counted: Bools) -> Floats:
    """Median of the counted cases, 0 where there is none."""
    empty = ~counted.any(axis=-1, keepdims=True)
    kept = np.where(empty, 0.0, np.where(counted, means, np.nan))
    return np.asarray(np.nanmedian(kept, axis=-1))
