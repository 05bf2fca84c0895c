"""One number with its uncertainty, from the samples of a run: each sample is a process, and processes are what varies.

Cases are compared sample by sample: the n-th samples of all cases are of one process, so the same machine, heat and
neighbours. A ratio is the mean of the log ratios of such pairs, with the interval of the paired t.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from kvbench.analysis.claims.evidence import CaseEvidence, Evidence, Quantity
from kvbench.analysis.claims.places import labels_of, lack_of, name_of, words_of
from kvbench.analysis.gate.statistics import paired
from kvbench.analysis.student import quantile

CHANCE = 0.05
"""Of an interval that misses the true value."""
SAME = 0.02
"""Two settings whose difference lies within this share do not differ in any way that matters, and a cost model is not
trusted with less."""
_LARGEST_LOG = 700.0


@dataclass(frozen=True, slots=True)
class Estimate:
    """`where`: what tells it from the others of a finding. `theta`, `se` and `df` are of the logarithm for a ratio."""

    where: str
    theta: float
    se: float
    df: float
    samples: int
    is_ratio: bool
    is_exact: bool = False
    margin: float = 0.0
    """Share by which a modelled ratio may be off: what it is nearer to a bound is not told apart from it."""

    @property
    def value(self) -> float:
        return self._scaled(self.theta)

    @property
    def is_lone(self) -> bool:
        """A single sample says nothing of how far another one would be."""
        return self.samples < 2 and not self.is_exact

    def interval(self, chance: float = CHANCE) -> tuple[float, float]:
        """Two-sided; the value twice where nothing varies and nothing is modelled."""
        if self.margin:
            return self.value / (1 + self.margin), self.value * (1 + self.margin)
        if self.samples < 2 or self.se == 0.0:
            return self.value, self.value
        half = float(quantile(1.0 - chance / 2.0, self.df)) * self.se
        return self._scaled(self.theta - half), self._scaled(self.theta + half)

    def _scaled(self, theta: float) -> float:
        return math.exp(min(theta, _LARGEST_LOG)) if self.is_ratio else theta


@dataclass(frozen=True, slots=True)
class Finding:
    """Estimates of one quantity in all the places where a run has it, or what it lacks."""

    estimates: tuple[Estimate, ...] = ()
    lack: str = ""
    missing: int = 0
    """Places that the run should have and has no numbers of."""


def ratios(
    evidence: Evidence,
    quantity: Quantity,
    left: Mapping[str, Any],
    right: Mapping[str, Any],
    *,
    kind: str = "engine",
    free: Sequence[str] = (),
    is_arithmetic: bool = False,
) -> Finding:
    """`left` over `right`, for every pair of cases that are equal in all other axes but the `free` ones.
    `is_arithmetic`: the quantity follows from the settings, and chance has no part in it."""

    def estimate(where: str, pairs: Sequence[tuple[float, float]]) -> Estimate | None:
        known = [(a, b) for a, b in pairs if a > 0 and b > 0]
        logs = [math.log(a) - math.log(b) for a, b in known]
        found = estimated(where, logs, is_ratio=True, is_exact=evidence.is_exact or is_arithmetic)
        return replace(found, margin=SAME) if found and evidence.is_exact and not is_arithmetic else found

    return _contrast(evidence, quantity, left, right, kind, free, estimate)


def differences(
    evidence: Evidence,
    quantity: Quantity,
    left: Mapping[str, Any],
    right: Mapping[str, Any],
    *,
    kind: str = "engine",
    free: Sequence[str] = (),
) -> Finding:
    """`left` minus `right`, likewise: for counts that may be zero."""

    def estimate(where: str, pairs: Sequence[tuple[float, float]]) -> Estimate | None:
        return estimated(where, [a - b for a, b in pairs], is_ratio=False, is_exact=evidence.is_exact)

    return _contrast(evidence, quantity, left, right, kind, free, estimate)


def average_ratio(
    evidence: Evidence, quantity: Quantity, left: Mapping[str, Any], right: Mapping[str, Any], where: str
) -> Finding:
    """`left` over `right` on average over all other axes (the mean of the log ratios, sample by sample), of the samples
    that all pairs have."""
    pairs, lack = _pairs(evidence, quantity, left, right)
    if lack:
        return Finding(lack=lack)
    logs = [
        {n: math.log(a) - math.log(b) for n, (a, b) in _both(*pair, quantity).items() if a > 0 and b > 0}
        for pair in pairs
    ]
    known = [one for one in logs if one]
    shared = sorted(set.intersection(*map(set, known))) if known else []
    means = [sum(one[n] for one in known) / len(known) for n in shared]
    found = estimated(where, means, is_ratio=True, is_exact=evidence.is_exact)
    if found is None:
        return Finding(lack=f"no sample has {name_of(quantity)} of all pairs, other than zero")
    return Finding((replace(found, margin=SAME) if evidence.is_exact else found,), missing=len(logs) - len(known))


def levels(
    evidence: Evidence, quantity: Quantity, settings: Mapping[str, Any], *, kind: str = "engine", is_scale: bool = False
) -> Finding:
    """The quantity itself in every case with these settings. `is_scale`: one that is positive by nature and may vary by
    factors, such as a time waited; where no sample is zero its interval is that of the logarithms."""
    cases = evidence.where(settings, kind)
    lack = lack_of(cases, settings, quantity, kind)
    if lack:
        return Finding(lack=lack)
    found = []
    for case, label in zip(cases, labels_of(cases), strict=True):
        values = list(case.values(quantity).values())
        on_logs = is_scale and bool(values) and min(values) > 0
        values = [math.log(value) for value in values] if on_logs else values
        found.append(estimated(label, values, is_ratio=on_logs, is_exact=evidence.is_exact))
    known = tuple(one for one in found if one is not None)
    return Finding(known, missing=len(found) - len(known))


def most(evidence: Evidence, quantity: Quantity, settings: Mapping[str, Any]) -> Finding:
    """The largest sample of every case with these settings, for what must never happen: once is certain, and a mean
    over the samples would hide it."""
    found = levels(evidence, quantity, settings)
    cases = [case for case in evidence.where(settings) if case.values(quantity)]
    tops = [max(case.values(quantity).values()) for case in cases]
    estimates = [
        replace(one, theta=top, se=0.0, is_exact=one.is_exact or top > 0)
        for one, top in zip(found.estimates, tops, strict=True)
    ]
    return replace(found, estimates=tuple(estimates))


def merged(*findings: Finding) -> Finding:
    """All estimates of several findings; what one lacks counts only when all lack something."""
    estimates = tuple(one for finding in findings for one in finding.estimates)
    lack = "" if estimates else next((f.lack for f in findings if f.lack), "")
    return Finding(estimates, lack, sum(f.missing + bool(f.lack) for f in findings))


def labelled(finding: Finding, where: str) -> Finding:
    """The same, each estimate with `where` before its own place."""
    parts = [replace(one, where=", ".join(filter(None, (where, one.where)))) for one in finding.estimates]
    return replace(finding, estimates=tuple(parts))


def _contrast(
    evidence: Evidence,
    quantity: Quantity,
    left: Mapping[str, Any],
    right: Mapping[str, Any],
    kind: str,
    free: Sequence[str],
    estimate: Callable[[str, Sequence[tuple[float, float]]], Estimate | None],
) -> Finding:
    pairs, lack = _pairs(evidence, quantity, left, right, kind, free)
    if lack:
        return Finding(lack=lack)
    labels = labels_of([a for a, _ in pairs])
    found = [estimate(label, list(_both(*pair, quantity).values())) for label, pair in zip(labels, pairs, strict=True)]
    known = tuple(one for one in found if one is not None)
    return (
        Finding(known, missing=len(found) - len(known))
        if known
        else Finding(lack=f"no sample has {name_of(quantity)} of both, other than zero")
    )


def _pairs(
    evidence: Evidence,
    quantity: Quantity,
    left: Mapping[str, Any],
    right: Mapping[str, Any],
    kind: str = "engine",
    free: Sequence[str] = (),
) -> tuple[list[tuple[CaseEvidence, CaseEvidence]], str]:
    """The pairs of cases that are equal in all other axes but the `free` ones, or why there are none."""
    sides = evidence.where(left, kind), evidence.where(right, kind)
    for cases, settings in zip(sides, (left, right), strict=True):
        lack = lack_of(cases, settings, quantity, kind)
        if lack:
            return [], lack
    ignored = {*left, *right, *free}
    pairs = [(a, b) for a, b in product(*sides) if a is not b and _rest(a, ignored) == _rest(b, ignored)]
    return pairs, "" if pairs else f"no two cases differ in {words_of(left)} and {words_of(right)} alone"


def estimated(where: str, values: Sequence[float], *, is_ratio: bool, is_exact: bool) -> Estimate | None:
    """From one value a sample, logarithms for a ratio."""
    if not values:
        return None
    if len(values) == 1:
        return Estimate(where, float(values[0]), 0.0, 0.0, 1, is_ratio, is_exact)
    test = paired(np.array(values, dtype=np.float64))
    return Estimate(where, float(test.theta), float(test.se), float(test.df), len(values), is_ratio, is_exact)


def _both(left: CaseEvidence, right: CaseEvidence, quantity: Quantity) -> dict[int, tuple[float, float]]:
    """Sample → the values of both, where both have one."""
    first, second = left.values(quantity), right.values(quantity)
    return {number: (first[number], second[number]) for number in first if number in second}


def _rest(case: CaseEvidence, ignored: set[str]) -> dict[str, Any]:
    return {name: value for name, value in case.axes.items() if name not in ignored}
