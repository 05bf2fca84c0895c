"""From stored runs to a verdict: samples as blocks, or, from three sessions on, the means of sessions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from kvbench.analysis.gate.decide import CODES, Evidence, decide
from kvbench.analysis.gate.examine import problems
from kvbench.analysis.gate.rules import judge
from kvbench.analysis.gate.statistics import Paired, from_moments
from kvbench.analysis.gate.types import CaseBlocks, CaseVerdict, Floats, Reason, Rule, SuiteVerdict, Verdict
from kvbench.analysis.sides import Side, metrics_of_case
from kvbench.store.case_columns import METRICS

LEAST_SESSIONS = 3
CLOCK_S = 1e-7
"""What the host's clock can tell apart: no difference of times below it is a verdict."""


@dataclass(frozen=True, slots=True)
class StoredCase:
    """A case that both sides planned: its id on each side, its kind and its words."""

    left: str
    right: str
    kind: str
    label: str


@dataclass(frozen=True, slots=True)
class Judged:
    """The verdict and what to say beside it."""

    suite: SuiteVerdict
    notes: tuple[str, ...]


def judge_stored(
    cases: Sequence[StoredCase], baselines: Sequence[Side], candidates: Sequence[Side], metrics: Sequence[str] = ()
) -> Judged:
    """Judge one stored run against another, or the sessions of one side against those of the other.

    Below three baseline sessions the samples of the first run of each side are blocks, paired by their number, and a
    FAIL is advice. From three on, the values are session means and the test is an unpaired t with one variance.
    """
    notes: list[str] = []
    if len(baselines) >= LEAST_SESSIONS:
        return Judged(_by_sessions(cases, baselines, candidates, metrics), _unjudged(cases, baselines, candidates))
    blocks = []
    for case in cases:
        if _never_tried(case, baselines[:1], candidates[:1]):
            continue
        names = metrics_of_case(case.kind, metrics, (baselines[0], candidates[0]), (case.left, case.right))
        blocks += [_paired(case, name, baselines[0], candidates[0], notes) for name in names]
    told = (*_unjudged(cases, baselines[:1], candidates[:1]), *dict.fromkeys(notes))
    return Judged(judge(blocks), told)


def _paired(case: StoredCase, metric: str, baseline: Side, candidate: Side, notes: list[str]) -> CaseBlocks:
    left, right = baseline.values(case.left, metric), candidate.values(case.right, metric)
    both = sorted(left.keys() & right.keys())
    if both and len(both) < max(len(left), len(right)):
        notes.append(f"{len(left)} samples against {len(right)}: the {len(both)} with the same number are compared")
    sides = ([left[n] for n in both], [right[n] for n in both]) if both else (list(left.values()), [*right.values()])
    drifting = baseline.share_warned(case.left, "not_stationary"), candidate.share_warned(case.right, "not_stationary")
    return _blocks(case, metric, np.array(sides[0]), np.array(sides[1]), sum(drifting) / 2)


def _blocks(case: StoredCase, metric: str, left: Floats, right: Floats, drifting: float = 0.0) -> CaseBlocks:
    column = METRICS[metric]
    return CaseBlocks(
        case_id=case.left,
        metric=metric,
        worse="lower" if column.better == "higher" else "higher",
        baseline=np.asarray(left, dtype=np.float64),
        candidate=np.asarray(right, dtype=np.float64),
        label=case.label,
        unit=column.unit,
        absolute_floor=CLOCK_S if column.unit == "s" else 0.0,
        not_stationary=drifting,
    )


def _never_tried(case: StoredCase, baselines: Sequence[Side], candidates: Sequence[Side]) -> bool:
    return all(s.never_tried(case.left) for s in baselines) and all(s.never_tried(case.right) for s in candidates)


def _unjudged(cases: Sequence[StoredCase], baselines: Sequence[Side], candidates: Sequence[Side]) -> tuple[str, ...]:
    found = [case.label for case in cases if _never_tried(case, baselines, candidates)]
    return tuple(f"not judged, it fits on neither side: {label}" for label in found)


def _by_sessions(
    cases: Sequence[StoredCase], baselines: Sequence[Side], candidates: Sequence[Side], metrics: Sequence[str]
) -> SuiteVerdict:
    blocks = []
    for case in cases:
        if _never_tried(case, baselines, candidates):
            continue
        ids = [case.left] * len(baselines) + [case.right] * len(candidates)
        for metric in metrics_of_case(case.kind, metrics, (*baselines, *candidates), ids):
            left = np.array([_session(side, case.left, metric) for side in baselines])
            right = np.array([_session(side, case.right, metric) for side in candidates])
            blocks.append(_blocks(case, metric, left, right))
    rule = replace(Rule(), least_blocks=LEAST_SESSIONS)
    verdicts = judge_sessions(blocks, rule)
    return SuiteVerdict(tuple(verdicts), None, rule, noise_floor=float("nan"), advisory=False)


def _session(side: Side, case_id: str, metric: str) -> float:
    """Geometric mean over the samples of a session; NaN where one is missing."""
    values = np.array(list(side.values(case_id, metric).values()))
    if values.size == 0 or not (values > 0).all():
        return float("nan") if values.size == 0 or np.isnan(values).any() else float(values.min())
    return float(np.exp(np.log(values).mean()))


def judge_sessions(blocks: Sequence[CaseBlocks], rule: Rule) -> list[CaseVerdict]:
    """One verdict per case from session means: t of the difference of means, variance pooled over the sides, so that
    one new session can be held against several old ones (its degrees of freedom are theirs)."""
    faults = [_session_faults(case) for case in blocks]
    sound = [case for case, fault in zip(blocks, faults, strict=True) if not fault]
    test = _unpaired(sound)
    zeros = np.zeros(len(sound))
    floors = np.array([np.log1p(case.absolute_floor / np.median(case.baseline)) for case in sound])
    decided = decide(test, Evidence(doubt=zeros, floor=floors, no_pass=zeros.astype(bool)), "single", rule, 0.0)
    found = iter([_session_verdict(case, at, test, decided, rule) for at, case in enumerate(sound)])
    return [_invalid(case, fault) if fault else next(found) for case, fault in zip(blocks, faults, strict=True)]


def _session_faults(case: CaseBlocks) -> tuple[Reason, ...]:
    return tuple(reason for reason in problems(case) if reason is not Reason.UNPAIRED)


def _unpaired(cases: Sequence[CaseBlocks]) -> Paired:
    moments = [_moments(np.log(case.baseline), np.log(case.candidate), case.worse == "higher") for case in cases]
    theta, se, df = (np.array([found[at] for found in moments], dtype=np.float64) for at in range(3))
    return from_moments(theta, se, df)


def _moments(left: Floats, right: Floats, higher_is_worse: bool) -> tuple[float, float, float]:
    df = left.size + right.size - 2
    spread = ((left - left.mean()) ** 2).sum() + ((right - right.mean()) ** 2).sum()
    se = float(np.sqrt(spread / df * (1 / left.size + 1 / right.size)))
    theta = float(right.mean() - left.mean())
    return (theta if higher_is_worse else -theta), se if se > 1e-14 else 0.0, float(df)


def _session_verdict(case: CaseBlocks, at: int, test: Paired, decided: Any, rule: Rule) -> CaseVerdict:
    verdict = CODES[int(decided.code[at])]
    reasons: tuple[Reason, ...] = ()
    if verdict is Verdict.INCONCLUSIVE:
        above = np.expm1(decided.mde[at]) > rule.pass_margin
        reasons = (Reason.MDE_ABOVE_MARGIN if above else Reason.BETWEEN_MARGINS,)
    numbers: Mapping[str, Any] = {
        "effect": np.expm1(test.theta[at]),
        "low": np.expm1(test.lower(0.025)[at]),
        "high": np.expm1(test.upper(0.025)[at]),
        "bound": np.expm1(decided.bound[at]),
        "p_worse": test.p_worse[at],
        "p_better": test.p_better[at],
        "p_worse_adjusted": decided.p_worse_adjusted[at],
        "p_better_adjusted": decided.p_better_adjusted[at],
        "mde": np.expm1(decided.mde[at]),
        "hodges_lehmann": np.expm1(_shift(case)),
    }
    found: dict[str, Any] = {name: float(value) for name, value in numbers.items()}
    return replace(_invalid(case, reasons), verdict=verdict, **found)


def _shift(case: CaseBlocks) -> float:
    """Hodges-Lehmann shift of two samples: the median of all differences."""
    gaps = np.log(case.candidate)[:, None] - np.log(case.baseline)[None, :]
    return float(np.median(gaps if case.worse == "higher" else -gaps))


def _invalid(case: CaseBlocks, reasons: tuple[Reason, ...]) -> CaseVerdict:
    nan = float("nan")
    numbers: dict[str, Any] = dict.fromkeys(
        ("effect", "low", "high", "bound", "p_worse", "p_better", "p_worse_adjusted", "p_better_adjusted", "mde",
         "hodges_lehmann", "noise_floor"), nan,
    )  # fmt: skip
    medians = [float(np.median(side)) if side.size else nan for side in (case.baseline, case.candidate)]
    return CaseVerdict(
        case_id=case.case_id,
        metric=case.metric,
        verdict=Verdict.INVALID,
        reasons=reasons,
        stage="single",
        blocks=min(case.baseline.size, case.candidate.size),
        baseline_median=medians[0],
        candidate_median=medians[1],
        worse=case.worse,
        label=case.label,
        unit=case.unit,
        **numbers,
    )
