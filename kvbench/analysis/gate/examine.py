"""One case before it is judged: is it valid, what are its differences, what speaks against believing them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from kvbench.analysis.gate import statistics
from kvbench.analysis.gate.shape import mode_distance
from kvbench.analysis.gate.types import CaseBlocks, Floats, Reason, Rule

_ORDER_ALPHA = 0.01
_DRIFTING_SHARE = 0.25
"""More than this share of processes still drifting: no PASS"""


@dataclass(frozen=True, slots=True)
class Examined:
    """A case's differences and doubts; logarithms. An invalid case has its reasons in `invalid` and no differences."""

    case: CaseBlocks
    differences: Floats
    floor: float
    """The absolute floor as a log difference"""
    modes: float
    order_gap: float
    order_p: float
    noisy: bool
    ordered: bool = False
    """The order effect holds after Holm over the cases"""
    invalid: tuple[Reason, ...] = ()

    @property
    def doubt(self) -> float:
        return max(self.modes, abs(self.order_gap) if self.ordered else 0.0)

    @property
    def drifting(self) -> bool:
        return self.case.not_stationary > _DRIFTING_SHARE

    @property
    def flags(self) -> tuple[Reason, ...]:
        """What to know about the case, whatever its verdict."""
        found = {
            Reason.NOISY: self.noisy,
            Reason.BIMODAL: self.modes > 0.0,
            Reason.NOT_STATIONARY: self.drifting,
            Reason.ORDER_EFFECT: self.ordered,
        }
        return tuple(reason for reason, holds in found.items() if holds)


def examine(case: CaseBlocks, rule: Rule, noise_floor: float) -> Examined:
    """Look at one case; `noise_floor` is a relative slowdown."""
    invalid = problems(case)
    if invalid:
        return Examined(case, np.zeros(0), 0.0, 0.0, 0.0, 1.0, noisy=False, invalid=invalid)
    differences = statistics.log_ratios(case)
    modes = max(float(mode_distance(np.log(side))) for side in (case.baseline, case.candidate))
    gap, p = statistics.order_effect(differences, case.order)
    return Examined(
        case=case,
        differences=differences,
        floor=float(np.log1p(case.absolute_floor / np.median(case.baseline))),
        modes=modes if modes >= np.log1p(rule.margin) else 0.0,
        order_gap=gap,
        order_p=p,
        noisy=noise_floor > rule.noisy_floor,
    )


def problems(case: CaseBlocks) -> tuple[Reason, ...]:
    """Why a case cannot be judged at all (M61); empty for a sound one."""
    sizes = case.baseline.size, case.candidate.size
    if max(sizes) == 0:
        return (Reason.NO_SAMPLES,)
    if min(sizes) == 0:
        return (Reason.ONE_SIDED,)
    values = np.concatenate([case.baseline, case.candidate])
    found = {
        Reason.NOT_A_NUMBER: not np.isfinite(values).all(),
        Reason.NOT_POSITIVE: bool((values <= 0).any()),
        Reason.UNPAIRED: sizes[0] != sizes[1],
        Reason.DISTURBED: case.disturbed,
    }
    return tuple(reason for reason, holds in found.items() if holds)


def with_order_effects(examined: Sequence[Examined]) -> list[Examined]:
    """Those whose order effect stands out after Holm over the sound cases are marked."""
    adjusted = statistics.holm(np.array([np.nan if one.invalid else one.order_p for one in examined]))
    marks = [bool(p <= _ORDER_ALPHA) for p in adjusted]
    return [replace(one, ordered=mark) for one, mark in zip(examined, marks, strict=True)]
