"""Whether the best value of a setting is among those that a claim names.

Held when one of them beats every other value, not held when one of the others beats all of them. The winner was picked
by its own numbers, so its chance is divided by the number of those it was picked from; beating several at once needs no
further correction (intersection-union, Berger 1982).
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np

from kvbench.analysis.claims.estimates import CHANCE, SAME, Estimate
from kvbench.analysis.claims.evidence import CaseEvidence, Evidence, Quantity
from kvbench.analysis.claims.judge import Claim, not_tested, verdict
from kvbench.analysis.claims.types import ClaimVerdict, Held
from kvbench.analysis.gate.statistics import paired


def best_among(
    claim: Claim, evidence: Evidence, quantity: Quantity, name: str, values: Sequence[object], *, kind: str = "engine"
) -> ClaimVerdict:
    """The best of the `values` of the setting `name` against the best of all others; more is better."""
    found: list[tuple[Held, Estimate]] = []
    missing = 0
    groups = _groups(evidence, name, kind)
    for where, cases in groups.items():
        mine = [case for case in cases if case.settings.get(name) in values and case.values(quantity)]
        others = [case for case in cases if case.settings.get(name) not in values and case.values(quantity)]
        if mine and others:
            missing += len(cases) - len(mine) - len(others)
            found.append(_compared(mine, others, quantity, name, "" if len(groups) == 1 else where, evidence.is_exact))
    if not found:
        return not_tested(claim, f"the run has no two cases that differ in {name} alone, of which the claim names one")
    words = [held for held, _ in found]
    held: Held = "not held" if "not held" in words else "unclear" if "unclear" in words else "held"
    estimates = [one for _, one in found]
    why = "one sample has no interval" if any(one.is_lone for one in estimates) else ""
    why = why or ("the best of both sides cannot be told apart" if held == "unclear" else "")
    if held != "unclear" and missing:
        held, why = "unclear", f"without numbers of {missing} more"
    return verdict(claim.text, held, why, claim, estimates, is_modelled=evidence.is_exact)


def _groups(evidence: Evidence, name: str, kind: str) -> dict[str, list[CaseEvidence]]:
    """The cases that are equal in all axes but `name`."""
    groups: dict[str, list[CaseEvidence]] = {}
    for case in evidence.cases:
        if case.kind == kind:
            rest = {axis: value for axis, value in case.axes.items() if axis != name}
            key = ", ".join(f"{axis}={json.dumps(value, default=str)}" for axis, value in rest.items())
            groups.setdefault(key, []).append(case)
    return groups


def _compared(
    mine: list[CaseEvidence],
    others: list[CaseEvidence],
    quantity: Quantity,
    name: str,
    where: str,
    is_exact: bool,
) -> tuple[Held, Estimate]:
    """Logarithms of both sides by sample, then the two picked winners against each other."""
    values = [case.values(quantity) for case in (*mine, *others)]
    shared = sorted(set.intersection(*(set(found) for found in values)))
    logs = np.log(np.array([[found[number] for number in shared] for found in values]).clip(min=1e-300))
    first, second = logs[: len(mine)], logs[len(mine) :]
    means = [side.mean(axis=1) if shared else np.zeros(len(side)) for side in (first, second)]
    top, rival = int(np.argmax(means[0])), int(np.argmax(means[1]))
    label = f"{name} {mine[top].settings.get(name)} against {others[rival].settings.get(name)}"
    label = ", ".join(filter(None, (label, where)))
    theta, se, df = _paired(first[top] - second[rival]) if shared else (0.0, 0.0, 0.0)
    margin = SAME if is_exact else 0.0
    estimate = Estimate(label, theta, se, df, len(shared), True, is_exact and bool(shared), margin)
    if estimate.is_lone:
        return "unclear", estimate
    least = float(np.log1p(margin))
    if _beats_all(first[top], second, CHANCE / len(mine), least):
        return "held", estimate
    return "not held" if _beats_all(second[rival], first, CHANCE / len(others), least) else "unclear", estimate


def _beats_all(winner: np.ndarray, rivals: np.ndarray, chance: float, least: float) -> bool:
    found = [_paired(winner - rival) for rival in rivals]
    lows = [Estimate("", *one, samples=winner.size, is_ratio=False).interval(chance)[0] for one in found]
    return all(low > least for low in lows)


def _paired(values: np.ndarray) -> tuple[float, float, float]:
    if values.size < 2:
        return float(values.mean()), 0.0, 0.0
    test = paired(values)
    return float(test.theta), float(test.se), float(test.df)
