"""A verdict with what a reader must know beside its numbers, and the words that all writers share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvbench.analysis.gate.types import TEXTS, CaseVerdict, SuiteVerdict, Verdict
from kvbench.report.cells import metric_cell, metric_label
from kvbench.store.case_columns import METRICS
from kvbench.store.columns import Column
from kvbench.tabulate import MISSING

if TYPE_CHECKING:
    from kvbench.store.comparability import FieldDifference

ORDER = (Verdict.INVALID, Verdict.FAIL, Verdict.INCONCLUSIVE, Verdict.IMPROVED, Verdict.PASS)
"""What a reader looks for first."""


@dataclass(frozen=True, slots=True)
class GateContext:
    """What was judged. Text from outside is not yet escaped."""

    suite: str
    baselines: Sequence[str]
    candidates: Sequence[str]
    """Runs, or revisions, of each side"""
    exit_code: int
    differences: Sequence[FieldDifference] = ()
    """The treatment, and what is noted"""
    notes: Sequence[str] = ()


def headline(verdict: SuiteVerdict) -> str:
    """The answer in one line."""
    counts = verdict.counts()
    parts = [f"{counts[name]} {name}" for name in ORDER if counts[name]]
    advice = " (advice only)" if verdict.advisory and verdict.verdict is Verdict.FAIL else ""
    return f"{verdict.verdict}{advice}: {', '.join(parts) if parts else 'nothing to judge'}"


def explanations(verdict: SuiteVerdict) -> list[str]:
    """What the reader must know of the rule and the suite-wide test."""
    rule = verdict.rule
    told = [
        f"effects are relative, > 0 is worse; intervals are 95 %; FAIL needs a Holm-adjusted p ≤ {rule.alpha_cases:g} "
        f"and ≥ {rule.margin:.0%}, PASS an upper bound < {rule.pass_margin:.0%}"
    ]
    if verdict.uniform is not None:
        u = verdict.uniform
        told.append(
            f"all {u.cases} cases together: {percent(u.effect)} [{percent(u.low)}, {percent(u.high)}], "
            f"p {u.p_worse:.2g}: {u.verdict}"
        )
    if verdict.advisory:
        told.append("without a valid self-test, or three stored sessions, a FAIL is advice and does not exit 1")
    return told


def label(case: CaseVerdict) -> str:
    return case.label or case.case_id


def metric(case: CaseVerdict) -> str:
    return metric_label(_column(case))


def values(case: CaseVerdict) -> tuple[str, str]:
    """Median of the baseline and of the candidate, for people."""
    column = _column(case)
    return metric_cell(case.baseline_median, column), metric_cell(case.candidate_median, column)


def interval(case: CaseVerdict) -> str:
    return MISSING if math.isnan(case.low) else f"[{percent(case.low)}, {percent(case.high)}]"


def reasons(case: CaseVerdict) -> str:
    return "; ".join(TEXTS[reason] for reason in case.reasons)


def sentence(case: CaseVerdict) -> str:
    """One case in words."""
    before, after = values(case)
    why = f" ({reasons(case)})" if case.reasons else ""
    return f"{metric(case)} {before} → {after}, {percent(case.effect)} {interval(case)}{why}"


def percent(value: float) -> str:
    """+3.1 %; a missing one is a dash; beyond tenfold the digits say nothing."""
    if math.isnan(value):
        return MISSING
    return f"{value:+.1%}".replace("%", " %") if value < 10 else "> 1000 %"


def ordered(verdict: SuiteVerdict) -> list[CaseVerdict]:
    """The cases as a reader wants them: what needs attention first, within it the largest effect."""

    def key(case: CaseVerdict) -> tuple[int, float]:
        return ORDER.index(case.verdict), -abs(case.effect) if not math.isnan(case.effect) else 0.0

    return sorted(verdict.cases, key=key)


def _column(case: CaseVerdict) -> Column:
    return METRICS.get(case.metric) or Column(case.metric, "float64", case.unit, "")
