"""From estimates to words. The 95 % interval must lie on one side of what the claim says; else the run does not tell.

A claim about several places (every arrival, every length) held when it held in each; one place that contradicts it
refutes it, and for that the chance is divided by the number of places (Bonferroni).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from kvbench.analysis.claims.estimates import CHANCE, Estimate, Finding
from kvbench.analysis.claims.types import MODELLED, ClaimVerdict, Held

SAME = 0.02
"""Two settings whose difference lies within this share, interval included, do not differ in any way that matters."""
ABOUT = 0.25
"""What "about" allows: a number that a claim rounds to a third or a half may be off by a quarter of itself."""
_LISTED = 4


@dataclass(frozen=True, slots=True)
class Band:
    """What a claim wants of a number. `is_strict`: the ends do not belong to it."""

    words: str
    low: float = -math.inf
    high: float = math.inf
    is_strict: bool = False

    def holds(self, interval: tuple[float, float]) -> bool:
        low, high = interval
        return self.low < low and high < self.high if self.is_strict else self.low <= low and high <= self.high

    def refutes(self, interval: tuple[float, float]) -> bool:
        low, high = interval
        return high <= self.low or low >= self.high if self.is_strict else high < self.low or low > self.high


def more_than(number: float, words: str = "") -> Band:
    return Band(words or f"more than ×{number:g}", low=number, is_strict=True)


def less_than(number: float, words: str = "") -> Band:
    return Band(words or f"less than ×{number:g}", high=number, is_strict=True)


def between(low: float, high: float, words: str = "") -> Band:
    return Band(words or f"×{low:g} to ×{high:g}", low=low, high=high)


def about(number: float, words: str) -> Band:
    return Band(f"about {words}", low=number * (1 - ABOUT), high=number * (1 + ABOUT))


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim, the quantity that shows it, and what the claim says of it."""

    text: str
    quantity: str
    wanted: Band
    unit: str = "x"
    """x a ratio, % a share, s seconds, or the thing that is counted."""


def not_tested(claim: Claim | str, why: str, *, is_modelled: bool = False) -> ClaimVerdict:
    text = claim if isinstance(claim, str) else claim.text
    return ClaimVerdict(text, "not tested", why, is_modelled=is_modelled)


def everywhere(claim: Claim, finding: Finding, *, where: str = "", is_modelled: bool = False) -> ClaimVerdict:
    """Held when every estimate is what the claim wants; `where` is added to the claim's words."""
    text = f"{claim.text} ({where})" if where else claim.text
    if finding.lack or not finding.estimates:
        return not_tested(text, finding.lack or "nothing to compare", is_modelled=is_modelled)
    held, why = _everywhere(claim.wanted, finding.estimates)
    return verdict(text, held, why, claim, finding.estimates, is_modelled=is_modelled)


def differs(claim: Claim, finding: Finding, *, is_modelled: bool = False) -> ClaimVerdict:
    """Held when some ratio is off 1 for certain, not held when all are within `SAME` of it."""
    if finding.lack or not finding.estimates:
        return not_tested(claim, finding.lack or "nothing to compare", is_modelled=is_modelled)
    lone = [one for one in finding.estimates if one.is_lone]
    chance = CHANCE / len(finding.estimates)
    same = between(1 - SAME, 1 + SAME)
    if lone:
        held, why = _unclear_for_one_sample()
    elif all(same.holds(one.interval()) for one in finding.estimates):
        held, why = "not held", f"within {SAME:.0%} of each other"
    elif any(not _contains(one.interval(chance), 1.0) for one in finding.estimates):
        held, why = "held", ""
    else:
        held, why = "unclear", "the interval includes no difference"
    return verdict(claim.text, held, why, claim, finding.estimates, is_modelled=is_modelled)


def _everywhere(wanted: Band, estimates: Sequence[Estimate]) -> tuple[Held, str]:
    if any(one.is_lone for one in estimates):
        return _unclear_for_one_sample()
    chance = CHANCE / len(estimates)
    against = [one for one in estimates if wanted.refutes(one.interval(chance))]
    if against:
        many = f"in {len(against)} of {len(estimates)} places" if len(estimates) > 1 else ""
        return "not held", many
    if all(wanted.holds(one.interval()) for one in estimates):
        return "held", ""
    return "unclear", "the interval reaches across"


def _unclear_for_one_sample() -> tuple[Held, str]:
    return "unclear", "one sample has no interval"


def verdict(
    text: str, held: Held, why: str, claim: Claim, estimates: Sequence[Estimate], *, is_modelled: bool
) -> ClaimVerdict:
    """The words and the numbers put together."""
    parts = [f"{MODELLED}: " if is_modelled else "", claim.quantity, " ", _listed(estimates, claim.unit)]
    parts += [f"; claimed: {claim.wanted.words}" if claim.wanted.words else "", f"; {why}" if why else ""]
    numbers = {
        "quantity": claim.quantity,
        "wanted": claim.wanted.words,
        "points": [_point(one) for one in estimates],
    }
    return ClaimVerdict(text, held, "".join(parts), numbers, is_modelled)


def _listed(estimates: Sequence[Estimate], unit: str) -> str:
    """The estimates in words; of many the smallest and the largest."""
    if len(estimates) <= _LISTED:
        return ", ".join(_told(one, unit) for one in estimates)
    ends = min(estimates, key=lambda one: one.value), max(estimates, key=lambda one: one.value)
    return f"{' to '.join(_told(one, unit) for one in ends)} in {len(estimates)} places"


def _told(one: Estimate, unit: str) -> str:
    write = _WRITERS.get(unit) or (lambda value: f"{value:.3g} {unit}")
    low, high = one.interval()
    span = "" if one.samples < 2 or low == high else f" [{write(low)}, {write(high)}]"
    return f"{write(one.value)}{span}" + (f" at {one.where}" if one.where else "")


def _point(one: Estimate) -> dict[str, Any]:
    low, high = one.interval()
    known = one.samples > 1 or one.is_exact
    return {
        "where": one.where,
        "value": one.value,
        "low": low if known else None,
        "high": high if known else None,
        "samples": one.samples,
    }


def _contains(interval: tuple[float, float], value: float) -> bool:
    return interval[0] <= value <= interval[1]


def _ratio(value: float) -> str:
    return f"×{value:.3g}" if value < 1000 else f"×{value:,.0f}"


def _share(value: float) -> str:
    return f"{value:.1%}".replace("%", " %")


def _seconds(value: float) -> str:
    from kvbench.units import format_seconds

    return format_seconds(value)


_WRITERS: dict[str, Callable[[float], str]] = {"x": _ratio, "%": _share, "s": _seconds}
