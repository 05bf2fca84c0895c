"""Rules on recorded nights of unchanged code: how often they cry wolf, and how often they find an injected slowdown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from kvbench.analysis.gate.baselines import BASELINES
from kvbench.analysis.gate.decide import FAIL, decide
from kvbench.analysis.gate.examine import examine, with_order_effects
from kvbench.analysis.gate.rules import evidence_of, judge, tests_of
from kvbench.analysis.gate.series import Night
from kvbench.analysis.gate.statistics import Bools, Paired, from_moments
from kvbench.analysis.gate.types import CaseBlocks, Floats, Rule, SuiteVerdict, Verdict

EFFECTS = (0.01, 0.02, 0.03, 0.05, 0.10)
OURS = "kvbench"
_ENTRIES = 500_000
"""Tests judged at once"""


@dataclass(frozen=True, slots=True)
class Score:
    """One rule on the nights of one design. Rates are shares of all cells, a cell being one case of one night."""

    design: str
    rule: str
    nights: int
    cells: int
    false_cells: int
    """Cells of unchanged code that are called slower"""
    false_nights: int
    """Nights with at least one of them, or a suite-wide FAIL"""
    passed: int | None
    """Cells of unchanged code that PASS; None for rules that know no such verdict"""
    power: dict[float, float]
    """Injected slowdown → share of cells in which it is found"""
    detectable: dict[float, int]
    """Injected slowdown → cells whose minimum detectable effect, by our rule, is not above it"""
    power_detectable: dict[float, float | None]
    """The share among those; None where there is none"""


@dataclass(frozen=True, slots=True)
class _Cells:
    """What a rule said of every cell of all nights: [cells] unchanged, effect → [cells] injected."""

    unchanged: Bools
    injected: dict[float, Bools]


def replay(nights: Sequence[Night], rule: Rule | None = None, others: Sequence[str] = tuple(BASELINES)) -> list[Score]:
    """Our rule (one stage, no self-test, hence no noise floor) and `others` on the same cells; `nights` are of one
    design. Slowdowns are injected into one case at a time."""
    rule = rule or Rule()
    verdicts = [judge(night.cases, rule=rule) for night in nights]
    ours = _ours(nights, verdicts, rule)
    mde = np.array([case.mde for verdict in verdicts for case in verdict.cases])
    starts = np.cumsum([0, *(len(night.cases) for night in nights)])
    alarms = [verdict.verdict is Verdict.FAIL for verdict in verdicts]
    passed = sum(len(verdict.having(Verdict.PASS)) for verdict in verdicts)
    scores = [_score(nights[0].design, OURS, ours, starts, mde, alarms, passed)]
    for name in others:
        found = _theirs(name, [case for night in nights for case in night.cases])
        alarms = [bool(found.unchanged[a:b].any()) for a, b in pairwise(starts)]
        scores.append(_score(nights[0].design, name, found, starts, mde, alarms, None))
    return scores


def _score(
    design: str, name: str, cells: _Cells, starts: Floats, mde: Floats, alarms: Sequence[bool], passed: int | None
) -> Score:
    within = {effect: mde <= effect for effect in EFFECTS}
    return Score(
        design=design,
        rule=name,
        nights=len(alarms),
        cells=int(starts[-1]),
        false_cells=int(cells.unchanged.sum()),
        false_nights=sum(alarms),
        passed=passed,
        power={effect: float(found.mean()) for effect, found in cells.injected.items()},
        detectable={effect: int(mask.sum()) for effect, mask in within.items()},
        power_detectable={
            effect: float(cells.injected[effect][mask].mean()) if mask.any() else None
            for effect, mask in within.items()
        },
    )


def _ours(nights: Sequence[Night], verdicts: Sequence[SuiteVerdict], rule: Rule) -> _Cells:
    unchanged = np.array([case.verdict is Verdict.FAIL for verdict in verdicts for case in verdict.cases])
    found = [_found(night.cases, rule) for night in nights]
    return _Cells(unchanged, {effect: np.concatenate([night[effect] for night in found]) for effect in EFFECTS})


def _found(cases: Sequence[CaseBlocks], rule: Rule) -> dict[float, Bools]:
    """Effect → [cases] whether a case fails when it alone is slowed: the suites of all cases are judged at once."""
    examined = with_order_effects([examine(case, rule, 0.0) for case in cases])
    test, evidence = tests_of(examined), evidence_of(examined)
    found = {effect: np.zeros(len(cases), dtype=bool) for effect in EFFECTS}
    step = max(1, _ENTRIES // max(len(cases), 1))
    for effect, fails in found.items():
        moved = from_moments(test.theta + np.log1p(effect), test.se, test.df)
        for start in range(0, len(cases), step):
            rows = np.arange(start, min(start + step, len(cases)))
            decided = decide(_replaced(test, moved, rows), evidence, "single", rule, 0.0)
            fails[rows] = decided.code[np.arange(rows.size), rows] == FAIL
    return found


def _replaced(test: Paired, moved: Paired, rows: NDArray[np.int64]) -> Paired:
    """[rows, cases]: in each row the test of that one case is the moved one."""
    one = rows[:, None] == np.arange(test.theta.size)[None, :]
    names = [field.name for field in fields(Paired)]
    return Paired(*(np.where(one, getattr(moved, name)[None, :], getattr(test, name)[None, :]) for name in names))


def _theirs(name: str, cases: Sequence[CaseBlocks]) -> _Cells:
    """Cells with equally many blocks go through a rule together; of a rate the reciprocal is judged."""
    says = BASELINES[name]
    found = {effect: np.zeros(len(cases), dtype=bool) for effect in (0.0, *EFFECTS)}
    sizes = np.array([case.baseline.size for case in cases])
    for size in np.unique(sizes):
        at = np.flatnonzero(sizes == size)
        group = [cases[int(i)] for i in at]
        baseline = np.array([_as_time(case, case.baseline) for case in group])
        candidate = np.array([_as_time(case, case.candidate) for case in group])
        with np.errstate(over="ignore"):
            for effect, rows in found.items():
                rows[at] = says(baseline, candidate * (1.0 + effect))
    return _Cells(found.pop(0.0), found)


def _as_time(case: CaseBlocks, values: Floats) -> Floats:
    return values if case.worse == "higher" else 1.0 / values
