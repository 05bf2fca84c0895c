"""The words of the gate: blocks of a case, the rule's settings, verdicts with their reasons and numbers."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from kvbench.errors import ExitCode

if TYPE_CHECKING:
    from kvbench.analysis.gate.self_test import SelfTest

Floats = NDArray[np.float64]
Worse = Literal["higher", "lower"]
Inconclusive = Literal["pass", "fail", "neutral"]


class Verdict(StrEnum):
    """What the gate says of a case or of a suite."""

    PASS = "PASS"
    FAIL = "FAIL"
    IMPROVED = "IMPROVED"
    INCONCLUSIVE = "INCONCLUSIVE"
    INVALID = "INVALID"


class Reason(StrEnum):
    """Why a case is INVALID or INCONCLUSIVE, or what to know about another verdict."""

    NO_SAMPLES = "no_samples"
    ONE_SIDED = "one_sided"
    NOT_A_NUMBER = "not_a_number"
    NOT_POSITIVE = "not_positive"
    UNPAIRED = "unpaired"
    DISTURBED = "disturbed"
    UNCONFIRMED = "unconfirmed"
    TOO_FEW_BLOCKS = "too_few_blocks"
    NOISY = "noisy"
    BIMODAL = "bimodal"
    NOT_STATIONARY = "not_stationary"
    ORDER_EFFECT = "order_effect"
    MDE_ABOVE_MARGIN = "mde_above_margin"
    BETWEEN_MARGINS = "between_margins"
    ESTIMATORS_DISAGREE = "estimators_disagree"
    ADVISORY = "advisory"


TEXTS: dict[Reason, str] = {
    Reason.NO_SAMPLES: "no samples on either side",
    Reason.ONE_SIDED: "samples on one side only",
    Reason.NOT_A_NUMBER: "a value is not a finite number",
    Reason.NOT_POSITIVE: "a value is zero or negative",
    Reason.UNPAIRED: "the two sides have different numbers of blocks",
    Reason.DISTURBED: "blocks stayed disturbed beyond the budget of repeats",
    Reason.UNCONFIRMED: "a candidate of the screen has no fresh blocks",
    Reason.TOO_FEW_BLOCKS: "too few blocks for a verdict",
    Reason.NOISY: "unchanged code differs by more than the margin here (noise floor)",
    Reason.BIMODAL: "processes fall into two groups",
    Reason.NOT_STATIONARY: "processes were still drifting after warm-up",
    Reason.ORDER_EFFECT: "the side that runs second is judged differently",
    Reason.MDE_ABOVE_MARGIN: "the smallest effect that these blocks can show is above the margin",
    Reason.BETWEEN_MARGINS: "neither shown slower nor shown within the margin",
    Reason.ESTIMATORS_DISAGREE: "the Hodges-Lehmann estimate lies outside the interval of the mean",
    Reason.ADVISORY: "without a valid self-test, or three stored sessions, a FAIL is only advice",
}


@dataclass(frozen=True, slots=True)
class CaseBlocks:
    """The blocks of one metric of one case: `baseline[r]` and `candidate[r]` are fresh processes run side by side."""

    case_id: str
    metric: str
    worse: Worse
    """Which direction of the metric is bad"""
    baseline: Floats
    candidate: Floats
    order: NDArray[np.int8] = field(default_factory=lambda: np.zeros(0, np.int8))
    """[R] +1 where the baseline ran first, −1 where the candidate did; empty where nobody wrote it down"""
    label: str = ""
    unit: str = ""
    absolute_floor: float = 0.0
    """Differences below this, in the metric's unit, do not matter: where it is more, it takes the place of both
    margins"""
    not_stationary: float = 0.0
    """Share of the processes that were still drifting when warm-up hit its cap"""
    disturbed: bool = False
    """Throttled or shared beyond the budget of repeats"""

    @property
    def key(self) -> tuple[str, str]:
        return self.case_id, self.metric


@dataclass(frozen=True, slots=True)
class Rule:
    """Every number of the rule; the defaults are the documented method."""

    alpha_cases: float = 0.008
    """Family-wise, Holm over the cases"""
    alpha_uniform: float = 0.002
    """For the one suite-wide test"""
    margin: float = 0.02
    """A FAIL is at least this slowdown"""
    pass_margin: float = 0.03
    """PASS: the bound of the slowdown is below this"""
    screen_pass_margin: float = 0.02
    """PASS at the screen, where a FAIL is still possible later"""
    false_pass: float = 0.05
    """Chance of a PASS at a true slowdown of `pass_margin`, both stages together"""
    false_pass_screen: float = 0.01
    """The screen's part of it"""
    uniform_margin: float = 0.005
    """The suite-wide test fails from this mean slowdown on"""
    noisy_floor: float = 0.03
    """No PASS where unchanged code differs by more"""
    power: float = 0.95
    """The minimum detectable effect is found with this probability"""
    least_blocks: int = 5
    screen_blocks: int = 10
    confirm_blocks: int = 24
    least_confirm_blocks: int = 16


@dataclass(frozen=True, slots=True)
class CaseVerdict:
    """The verdict on one case with every number behind it. Effects are relative slowdowns: > 0 is worse, whatever
    the direction of the metric; NaN where there is none."""

    case_id: str
    metric: str
    verdict: Verdict
    reasons: tuple[Reason, ...]
    stage: Literal["single", "screen", "confirm", "sessions"]
    blocks: int
    """Blocks judged; of stored sessions, the smaller number of either side's"""
    baseline_median: float
    candidate_median: float
    effect: float
    low: float
    high: float
    """Two-sided 95 % interval of `effect`"""
    bound: float
    """The one-sided upper bound that PASS looks at"""
    p_worse: float
    p_better: float
    p_worse_adjusted: float
    p_better_adjusted: float
    """Holm-adjusted: compare with `Rule.alpha_cases`"""
    mde: float
    """Minimum detectable effect, at the strictest share of alpha"""
    hodges_lehmann: float
    noise_floor: float
    worse: Worse = "higher"
    label: str = ""
    unit: str = ""
    advisory: bool = False

    @property
    def key(self) -> tuple[str, str]:
        return self.case_id, self.metric


@dataclass(frozen=True, slots=True)
class UniformVerdict:
    """The suite-wide test: the mean over the cases that do not fail by themselves, one value per block."""

    verdict: Verdict
    cases: int
    blocks: int
    effect: float
    low: float
    high: float
    p_worse: float
    p_better: float


@dataclass(frozen=True, slots=True)
class SuiteVerdict:
    """All cases, the suite-wide test and what they amount to."""

    cases: tuple[CaseVerdict, ...]
    uniform: UniformVerdict | None
    rule: Rule
    noise_floor: float
    """95th percentile of |effect| of unchanged code; NaN without a self-test"""
    advisory: bool
    """A FAIL is advice only"""
    self_test: SelfTest | None = None

    def counts(self) -> dict[Verdict, int]:
        """How many cases have which verdict."""
        return {verdict: sum(case.verdict is verdict for case in self.cases) for verdict in Verdict}

    def having(self, verdict: Verdict) -> list[CaseVerdict]:
        return [case for case in self.cases if case.verdict is verdict]

    @property
    def verdict(self) -> Verdict:
        """INVALID before FAIL: missing data is never an answer. IMPROVED only where nothing is left open."""
        found = {case.verdict for case in self.cases}
        if not found or Verdict.INVALID in found:
            return Verdict.INVALID
        if self.uniform is not None:
            found.add(self.uniform.verdict)
        order = (Verdict.FAIL, Verdict.INCONCLUSIVE, Verdict.IMPROVED, Verdict.PASS)
        return next(verdict for verdict in order if verdict in found)

    def exit_code(self, inconclusive: Inconclusive = "neutral") -> ExitCode:
        """0 PASS or IMPROVED, 1 FAIL, 5 INVALID, 3 INCONCLUSIVE (0 and 1 under `pass` and `fail`).

        A FAIL that is only advice counts as inconclusive."""
        verdict = self.verdict
        if verdict is Verdict.INVALID:
            return ExitCode.BAD_DATA
        if verdict is Verdict.FAIL and not self.advisory:
            return ExitCode.NO
        if verdict in (Verdict.FAIL, Verdict.INCONCLUSIVE):
            return {"pass": ExitCode.OK, "fail": ExitCode.NO, "neutral": ExitCode.PARTIAL}[inconclusive]
        return ExitCode.OK
