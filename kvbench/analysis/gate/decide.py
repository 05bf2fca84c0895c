"""The order of the rules, on arrays [..., cases]: FAIL, IMPROVED, PASS, else INCONCLUSIVE."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from kvbench.analysis.gate.statistics import Bools, Paired, detectable, holm
from kvbench.analysis.gate.types import Floats, Rule, Verdict
from kvbench.analysis.student import quantile

Stage = Literal["single", "screen", "confirm", "sessions"]
CODES = (Verdict.INCONCLUSIVE, Verdict.FAIL, Verdict.IMPROVED, Verdict.PASS)
INCONCLUSIVE, FAIL, IMPROVED, PASS = range(len(CODES))


@dataclass(frozen=True, slots=True)
class Evidence:
    """What the rules look at beside the t test; arrays have the shape of the tests, or broadcast to it."""

    doubt: Floats
    """Log difference that modes or the order of the sides could make by themselves"""
    floor: Floats
    """Log difference that is below the absolute floor"""
    no_pass: Bools
    """Still drifting, noisy: a PASS would not be believed"""

    @staticmethod
    def clean(shape: tuple[int, ...]) -> Evidence:
        """Nothing to doubt."""
        return Evidence(np.zeros(shape), np.zeros(shape), np.zeros(shape, bool))


@dataclass(frozen=True, slots=True)
class Decided:
    """Codes (places in `CODES`) and the numbers that led to them, all [..., cases]."""

    code: NDArray[np.int8]
    p_worse_adjusted: Floats
    p_better_adjusted: Floats
    bound: Floats
    mde: Floats
    """Logarithm"""


def decide(test: Paired, evidence: Evidence, stage: Stage, rule: Rule, noise_floor: float) -> Decided:
    """Judge all cases of a suite that have one stage's blocks. `noise_floor` is a logarithm.

    At the screen of two stages only PASS is decided, and not for what looks improved: fresh blocks are to say that.
    The family of Holm is the cases given, which at the confirm stage are the candidates: their blocks are fresh, so
    that the choice of them does not bias the test.
    """
    margin = np.maximum(max(np.log1p(rule.margin), noise_floor), evidence.floor)
    worse, better = holm(test.p_worse), holm(test.p_better)
    bound = test.upper(_false_pass(stage, rule))
    code = np.full(test.theta.shape, INCONCLUSIVE, dtype=np.int8)
    improved = (better <= rule.alpha_cases) & _beyond(-test.theta, -test.upper(0.05), margin, evidence)
    if stage != "screen":
        code[improved] = IMPROVED
        code[(worse <= rule.alpha_cases) & _beyond(test.theta, test.lower(0.05), margin, evidence)] = FAIL
    believed = ~evidence.no_pass & (evidence.doubt < np.log1p(rule.pass_margin)) & ~improved
    code[(code == INCONCLUSIVE) & believed & _within(test, bound, evidence.floor, stage, rule)] = PASS
    code[test.df < rule.least_blocks - 1] = INCONCLUSIVE
    return Decided(code, worse, better, bound, _detectable(test, margin, evidence, rule))


def _detectable(test: Paired, margin: Floats, evidence: Evidence, rule: Rule) -> Floats:
    """At Holm's strictest share, and beyond what modes or the order could make."""
    share = rule.alpha_cases / max(test.theta.shape[-1], 1)
    plain = detectable(test.se, test.df, share, margin, rule.power)
    beyond = evidence.doubt + (quantile(0.95, test.df) + quantile(rule.power, test.df)) * test.se
    return np.where(evidence.doubt > 0.0, np.maximum(plain, beyond), plain)


def _beyond(effect: Floats, lower: Floats, margin: Floats, evidence: Evidence) -> Bools:
    """As large as the margin, and surely larger than what modes or the order could make."""
    beyond: Bools = (effect >= margin) & ((lower >= evidence.doubt) | (evidence.doubt == 0.0))
    return beyond


def _false_pass(stage: Stage, rule: Rule) -> float:
    """The chance of a false PASS that a stage may spend: both together spend `false_pass`."""
    return rule.false_pass - rule.false_pass_screen if stage == "confirm" else rule.false_pass


def _within(test: Paired, bound: Floats, floor: Floats, stage: Stage, rule: Rule) -> Bools:
    """Non-inferiority. The screen's PASS is final, so it must also hold against the outer margin at the small chance
    that is its part of a false PASS."""
    outer = np.maximum(np.log1p(rule.pass_margin), floor)
    if stage != "screen":
        return bound < outer
    inner = np.maximum(np.log1p(rule.screen_pass_margin), floor)
    return (bound < inner) & (test.upper(rule.false_pass_screen) < outer)
