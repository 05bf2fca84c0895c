"""Base against base through the same path: how much does unchanged code differ here, and would a slowdown be seen?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from kvbench.analysis.gate.examine import Examined, examine, with_order_effects
from kvbench.analysis.gate.exchange import resemblance, uniformity
from kvbench.analysis.gate.types import CaseBlocks, Floats, Rule, Verdict

_NAN = float("nan")
_P_ALPHA = 0.01
_CORRELATION_ALPHA = 0.001
_LEAST_FOUND = 0.8
_NOISE_PERCENTILE = 95.0


@dataclass(frozen=True, slots=True)
class SelfTest:
    """What a base-against-base run showed. Effects are relative slowdowns."""

    cases: int
    blocks: int
    noise_floor: float
    """95th percentile of |effect| over the cases"""
    uniform_effect: float
    """|mean effect| over all cases"""
    p_uniformity: float
    """Kolmogorov distance of the one-sided p values from the uniform distribution, ranked among exchanges of sides"""
    autocorrelation: float
    """Mean correlation of a case's differences from block to block, its bias of −1/R taken out"""
    p_autocorrelation: float
    """One-sided, ranked among orders of the blocks: blocks that resemble the block before make every interval too
    narrow"""
    order_effects: int
    """Cases where the side that runs second differs, after Holm"""
    false_verdicts: int
    """Cases, or the suite, that the rule calls FAIL or IMPROVED"""
    injected: float
    """Slowdown that was put on the second side"""
    detectable: int
    """Cases whose minimum detectable effect is below it"""
    detected: int
    """Of those, how many were FAIL"""
    problems: tuple[str, ...]
    """Why it does not count; empty for a valid one"""
    fingerprint: str = ""
    """Digest of the must-be-equal fields that it was taken under; it speaks for no others"""

    @property
    def valid(self) -> bool:
        return not self.problems


def self_test(
    cases: Sequence[CaseBlocks], *, rule: Rule | None = None, injected: float = 0.05, fingerprint: str = ""
) -> SelfTest:
    """Judge a run of base against base. `cases` are its blocks as the gate takes them; one stage."""
    from kvbench.analysis.gate.rules import judge

    rule = rule or Rule()
    plain = judge(cases, rule=rule)
    sound = [case for case in plain.cases if case.verdict is not Verdict.INVALID and case.blocks >= rule.least_blocks]
    effects = np.log1p([case.effect for case in sound])
    marked = with_order_effects([examine(case, rule, 0.0) for case in cases])
    visible = [case.key for case in sound if case.mde <= injected]
    slowed = judge([with_slowdown(case, injected) for case in cases if case.key in set(visible)], rule=rule)
    false_verdicts = [case for case in plain.cases if case.verdict in (Verdict.FAIL, Verdict.IMPROVED)]
    uniform = plain.uniform
    differences = _aligned(marked)
    correlation, p_correlation = resemblance(differences)
    found = SelfTest(
        cases=len(sound),
        blocks=min((case.blocks for case in sound), default=0),
        noise_floor=float(np.expm1(np.percentile(np.abs(effects), _NOISE_PERCENTILE))) if sound else _NAN,
        uniform_effect=float(np.expm1(abs(effects.mean()))) if sound else _NAN,
        p_uniformity=uniformity(differences),
        autocorrelation=correlation,
        p_autocorrelation=p_correlation,
        order_effects=sum(one.ordered for one in marked),
        false_verdicts=len(false_verdicts)
        + (uniform is not None and uniform.verdict in (Verdict.FAIL, Verdict.IMPROVED)),
        injected=injected,
        detectable=len(visible),
        detected=len(slowed.having(Verdict.FAIL)),
        problems=(),
        fingerprint=fingerprint,
    )
    return replace(found, problems=_problems(found, len(cases)))


def with_slowdown(case: CaseBlocks, effect: float) -> CaseBlocks:
    """The case with its candidate made worse by a relative `effect` (a slowdown, or a loss of throughput)."""
    factor = 1.0 + effect
    return replace(case, candidate=case.candidate * factor if case.worse == "higher" else case.candidate / factor)


def _aligned(examined: Sequence[Examined]) -> Floats:
    """[cases, R] differences of the sound cases, over the blocks that all of them have."""
    known = [one.differences for one in examined if one.differences.size > 2]
    blocks = min((values.size for values in known), default=0)
    return np.array([values[:blocks] for values in known]) if known else np.zeros((0, 0))


def _problems(found: SelfTest, given: int) -> tuple[str, ...]:
    holds = {
        "no case has enough valid blocks": found.cases == 0,
        f"{given - found.cases} of {given} cases are invalid or have too few blocks": 0 < found.cases < given,
        f"p values are not uniform (p = {found.p_uniformity:.2g})": found.p_uniformity < _P_ALPHA,
        f"blocks resemble the block before them (correlation {found.autocorrelation:.2f})": (
            found.p_autocorrelation < _CORRELATION_ALPHA
        ),
        f"{found.order_effects} cases depend on which side runs first": found.order_effects > 0,
        f"{found.false_verdicts} false verdicts on unchanged code": found.false_verdicts > 0,
        f"no case would show a slowdown of {found.injected:.0%}": found.cases > 0 and found.detectable == 0,
        f"only {found.detected} of {found.detectable} injected slowdowns were found": (
            found.detected < _LEAST_FOUND * found.detectable
        ),
    }
    return tuple(text for text, is_so in holds.items() if is_so)
