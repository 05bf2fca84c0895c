"""Judge a suite: validity, the t test of every case, Holm over the cases, the suite-wide test, screen and confirm."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from kvbench.analysis.gate.decide import CODES, Decided, Evidence, Stage, decide
from kvbench.analysis.gate.examine import Examined, examine, with_order_effects
from kvbench.analysis.gate.statistics import Paired, from_moments, hodges_lehmann, paired
from kvbench.analysis.gate.types import CaseBlocks, CaseVerdict, Floats, Reason, Rule, SuiteVerdict, Verdict
from kvbench.analysis.gate.uniform import judge_uniform

if TYPE_CHECKING:
    from kvbench.analysis.gate.self_test import SelfTest

_NAN = float("nan")
_FINAL = (Verdict.PASS, Verdict.INVALID)


def judge(
    cases: Sequence[CaseBlocks],
    confirm: Sequence[CaseBlocks] | None = None,
    *,
    rule: Rule | None = None,
    self_test: SelfTest | None = None,
) -> SuiteVerdict:
    """The verdict on a suite. `cases` holds one entry for each (case, metric), `confirm` the fresh blocks of those
    that `candidates` names; without `confirm` all that there is to know is in `cases` (one stage).

    Without a valid `self_test` a FAIL is advisory.
    """
    rule = rule or Rule()
    floor = _floor(self_test)
    found = _stage(cases, "single", rule, floor) if confirm is None else _two_stages(cases, confirm, rule, floor)
    rest = [case for case, verdict in zip(cases, found, strict=True) if verdict.verdict is not Verdict.FAIL]
    advisory = self_test is None or not self_test.valid
    return SuiteVerdict(
        cases=tuple(as_advice(verdict) if advisory else verdict for verdict in found),
        uniform=judge_uniform(
            rest, rule, self_test.uniform_effect if self_test is not None and self_test.cases else 0.0
        ),
        rule=rule,
        noise_floor=floor if self_test is not None else _NAN,
        advisory=advisory,
        self_test=self_test,
    )


def candidates(
    cases: Sequence[CaseBlocks], *, rule: Rule | None = None, self_test: SelfTest | None = None
) -> list[CaseBlocks]:
    """The cases of a screen that need fresh blocks: all that are neither PASS nor INVALID there."""
    found = _stage(cases, "screen", rule or Rule(), _floor(self_test))
    return [case for case, verdict in zip(cases, found, strict=True) if verdict.verdict not in _FINAL]


def _floor(self_test: SelfTest | None) -> float:
    """The noise floor, an invalid self-test's too; 0 where there is none."""
    return self_test.noise_floor if self_test is not None and self_test.cases else 0.0


def _two_stages(
    cases: Sequence[CaseBlocks], confirm: Sequence[CaseBlocks], rule: Rule, floor: float
) -> list[CaseVerdict]:
    """PASS and INVALID of the screen stand; every other case is what its fresh blocks say."""
    screened = _stage(cases, "screen", rule, floor)
    open_keys = {verdict.key for verdict in screened if verdict.verdict not in _FINAL}
    confirmed = _stage([case for case in confirm if case.key in open_keys], "confirm", rule, floor)
    fresh = {verdict.key: verdict for verdict in confirmed}
    return [
        verdict if verdict.verdict in _FINAL else fresh.get(verdict.key) or _unconfirmed(verdict)
        for verdict in screened
    ]


def _unconfirmed(verdict: CaseVerdict) -> CaseVerdict:
    return replace(verdict, verdict=Verdict.INVALID, reasons=(Reason.UNCONFIRMED,))


def as_advice(verdict: CaseVerdict) -> CaseVerdict:
    """A FAIL that does not count by itself; other verdicts are as they are."""
    if verdict.verdict is not Verdict.FAIL:
        return verdict
    return replace(verdict, advisory=True, reasons=(*verdict.reasons, Reason.ADVISORY))


def _stage(cases: Sequence[CaseBlocks], stage: Stage, rule: Rule, floor: float) -> list[CaseVerdict]:
    """One verdict for each case, in their order. `floor` is a relative slowdown."""
    examined = with_order_effects([examine(case, rule, floor) for case in cases])
    sound = [one for one in examined if not one.invalid]
    test = tests_of(sound)
    decided = decide(test, evidence_of(sound), stage, rule, float(np.log1p(floor)))
    verdicts = iter(
        [case_verdict(blank_verdict(one, stage, floor), one, at, test, decided, rule) for at, one in enumerate(sound)]
    )
    return [blank_verdict(one, stage, floor) if one.invalid else next(verdicts) for one in examined]


def evidence_of(sound: Sequence[Examined]) -> Evidence:
    """What stands beside the t tests of these cases."""
    return Evidence(
        doubt=np.array([one.doubt for one in sound]),
        floor=np.array([one.floor for one in sound]),
        no_pass=np.array([one.noisy or one.drifting for one in sound], dtype=bool),
    )


def tests_of(sound: Sequence[Examined]) -> Paired:
    """The t tests of cases that may differ in their number of blocks; one block alone has no test."""
    found = [paired(one.differences) if one.differences.size > 1 else None for one in sound]
    return from_moments(
        np.array([one.differences.mean() for one in sound]),
        np.array([test.se if test is not None else _NAN for test in found], dtype=np.float64),
        np.array([one.differences.size - 1 for one in sound], dtype=np.float64),
    )


def blank_verdict(one: Examined, stage: Stage, floor: float) -> CaseVerdict:
    """The verdict on a case that has no numbers: INVALID, with what is known of it."""
    case = one.case
    return CaseVerdict(
        case_id=case.case_id,
        metric=case.metric,
        verdict=Verdict.INVALID,
        reasons=one.invalid,
        stage=stage,
        blocks=min(case.baseline.size, case.candidate.size),
        baseline_median=_median(case.baseline),
        candidate_median=_median(case.candidate),
        effect=_NAN,
        low=_NAN,
        high=_NAN,
        bound=_NAN,
        p_worse=_NAN,
        p_better=_NAN,
        p_worse_adjusted=_NAN,
        p_better_adjusted=_NAN,
        mde=_NAN,
        hodges_lehmann=_NAN,
        noise_floor=floor,
        worse=case.worse,
        label=case.label,
        unit=case.unit,
    )


def case_verdict(blank: CaseVerdict, one: Examined, at: int, test: Paired, decided: Decided, rule: Rule) -> CaseVerdict:
    """`blank` with its numbers: those at place `at` of the tests."""
    middle = hodges_lehmann(one.differences)
    low, high = float(test.lower(0.025)[at]), float(test.upper(0.025)[at])
    found = replace(
        blank,
        verdict=CODES[int(decided.code[at])],
        effect=_relative(test.theta[at]),
        low=_relative(low),
        high=_relative(high),
        bound=_relative(decided.bound[at]),
        p_worse=float(test.p_worse[at]),
        p_better=float(test.p_better[at]),
        p_worse_adjusted=float(decided.p_worse_adjusted[at]),
        p_better_adjusted=float(decided.p_better_adjusted[at]),
        mde=_relative(decided.mde[at]),
        hodges_lehmann=_relative(middle),
    )
    disagree = (Reason.ESTIMATORS_DISAGREE,) if high > low and not low <= middle <= high else ()
    return replace(found, reasons=(*_open_reasons(found, one, rule), *disagree))


def _open_reasons(found: CaseVerdict, one: Examined, rule: Rule) -> tuple[Reason, ...]:
    """The flags of the case; an INCONCLUSIVE one has at least one reason."""
    if found.verdict is not Verdict.INCONCLUSIVE:
        return one.flags
    if found.blocks < rule.least_blocks:
        return (Reason.TOO_FEW_BLOCKS, *one.flags)
    if found.mde > rule.pass_margin:
        return (*one.flags, Reason.MDE_ABOVE_MARGIN)
    return one.flags or (Reason.BETWEEN_MARGINS,)


def _relative(logarithm: float) -> float:
    return float(np.expm1(logarithm))


def _median(values: Floats) -> float:
    return float(np.median(values)) if values.size else _NAN
