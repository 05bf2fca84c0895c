"""From stored runs to a verdict: samples as blocks, or, from three sessions on, the means of sessions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from kvbench.analysis.gate.rules import judge
from kvbench.analysis.gate.sessions import StoredSession, judge_sessions
from kvbench.analysis.gate.types import CaseBlocks, Floats, SuiteVerdict, Worse
from kvbench.analysis.sides import Side, metrics_of_case, of_kind
from kvbench.store.case_columns import METRICS

CLOCK_S = 1e-7
"""What the host's clock can tell apart: no difference of times below it is a verdict."""
DISTURBED_SHARE = 0.2
"""Of a side's samples, disturbed and, the budget being spent, not taken again: with more the case is invalid"""


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

    With one run a side its samples are blocks, paired by their number, and a FAIL is advice. With more the sessions are
    judged (`gate.sessions`): by their means from three baselines on, as advice below.
    """
    notes: list[str] = []
    if len(baselines) + len(candidates) > 2:
        return Judged(_by_sessions(cases, baselines, candidates, metrics), _unjudged(cases, baselines, candidates))
    blocks = []
    for case in cases:
        if _never_tried(case, baselines[:1], candidates[:1]):
            continue
        names = metrics_of_case(case.kind, metrics, (baselines[0], candidates[0]), (case.left, case.right))
        blocks += [_paired(case, name, baselines[0], candidates[0], notes) for name in names]
        notes += [f"{case.label} has no {name}" for name in of_kind(case.kind, metrics) if name not in names]
    told = (*_unjudged(cases, baselines[:1], candidates[:1]), *dict.fromkeys(notes))
    return Judged(judge(blocks), told)


def _paired(case: StoredCase, metric: str, baseline: Side, candidate: Side, notes: list[str]) -> CaseBlocks:
    left, right = baseline.values(case.left, metric), candidate.values(case.right, metric)
    both = sorted(left.keys() & right.keys())
    if both and len(both) < max(len(left), len(right)):
        notes.append(f"{len(left)} samples against {len(right)}: the {len(both)} with the same number are compared")
    sides = ([left[n] for n in both], [right[n] for n in both]) if both else (list(left.values()), [*right.values()])
    drifting = baseline.share_warned(case.left, "not_stationary"), candidate.share_warned(case.right, "not_stationary")
    found = blocks_of_case(case, metric, np.array(sides[0]), np.array(sides[1]), sum(drifting) / 2)
    return replace(found, disturbed=_is_disturbed(case, baseline, candidate))


def _is_disturbed(case: StoredCase, baseline: Side, candidate: Side) -> bool:
    shares = baseline.share_warned(case.left, "not_redone"), candidate.share_warned(case.right, "not_redone")
    return max(shares) > DISTURBED_SHARE


def blocks_of_case(case: StoredCase, metric: str, left: Floats, right: Floats, drifting: float = 0.0) -> CaseBlocks:
    """The values of one metric of a case on both sides, with what its column says of them; `drifting` is the share of
    processes whose warm-up hit its cap."""
    column = METRICS[metric]
    return CaseBlocks(
        case_id=case.left,
        metric=metric,
        worse=_worse(metric),
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
    """Several runs a side: the gate's rule for sessions."""
    values: list[dict[tuple[str, str], Floats]] = [{} for _ in (*baselines, *candidates)]
    labels: dict[tuple[str, str], str] = {}
    for case in cases:
        if _never_tried(case, baselines, candidates):
            continue
        ids = [case.left] * len(baselines) + [case.right] * len(candidates)
        sides = (*baselines, *candidates)
        for metric in metrics_of_case(case.kind, metrics, sides, ids):
            labels[case.left, metric] = case.label
            for found, side, case_id in zip(values, sides, ids, strict=True):
                found[case.left, metric] = np.array(list(side.values(case_id, metric).values()), dtype=np.float64)
    worse: dict[tuple[str, str], Worse] = {key: _worse(key[1]) for key in labels}
    runs = zip((*baselines, *candidates), values, strict=True)
    sessions = [StoredSession(side.run_id, found, worse) for side, found in runs]
    suite = judge_sessions(sessions[: len(baselines)], sessions[len(baselines) :])
    named = [replace(v, label=labels[v.key], unit=METRICS[v.metric].unit) for v in suite.cases]
    return replace(suite, cases=tuple(named))


def _worse(metric: str) -> Worse:
    return "lower" if METRICS[metric].better == "higher" else "higher"
