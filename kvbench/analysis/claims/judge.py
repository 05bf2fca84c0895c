"""From estimates to words. The 95 % interval must lie on one side of what the claim says; else the run does not tell.

A claim about several places (every arrival, every length) held when it held in each; one place that contradicts it
refutes it, and for that the chance is divided by the number of places (Bonferroni).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kvbench.analysis.claims.estimates import CHANCE, SAME, Estimate, Finding
from kvbench.analysis.claims.types import MODELLED, ClaimVerdict, Held
from kvbench.units import format_seconds

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

    @property
    def is_change(self) -> bool:
        """Whether it asks for a ratio above 1, or for one below: one that is near enough to 1 is then no change."""
        return self.is_strict and 1.0 in (self.low, self.high)

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


def at_most(number: float, words: str = "") -> Band:
    return Band(words or f"at most ×{number:g}", high=number)


def between(low: float, high: float, words: str = "") -> Band:
    return Band(words or f"×{low:g} to ×{high:g}", low=low, high=high)


def about(number: float, words: str) -> Band:
    return Band(f"about {words}", low=number * (1 - ABOUT), high=number * (1 + ABOUT))


def percent(share: float) -> str:
    """0.02 → `2 %`."""
    return f"{100 * share:g} %"


_SAME_BAND = between(1 - SAME, 1 + SAME)
DIFFERENT = Band(f"a difference of more than {percent(SAME)}")
"""What `differs` looks for, in words."""


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
    if held == "held" and finding.missing:
        held, why = "unclear", _unknown(finding)
    return verdict(text, held, why, claim, finding.estimates, is_modelled=is_modelled)


def each(claim: Claim, finding: Finding, *, is_modelled: bool = False) -> list[ClaimVerdict]:
    """One verdict for every place, where they may rightly differ."""
    if len(finding.estimates) < 2:
        return [everywhere(claim, finding, is_modelled=is_modelled)]
    return [
        everywhere(claim, Finding((replace(one, where=""),)), where=one.where, is_modelled=is_modelled)
        for one in finding.estimates
    ]


def opposed(
    claim: Claim, first: Finding, second: Finding, *, names: tuple[str, str], is_modelled: bool = False
) -> ClaimVerdict:
    """Held when, in every place, the first number is below 1 and the second above, or the other way round; not held
    when in one of them both are certain to be on the same side. Places are matched by
    their words; `names` are of the two numbers."""
    lack = first.lack or second.lack
    by_place = {one.where: one for one in second.estimates}
    pairs = [(one, by_place[one.where]) for one in first.estimates if one.where in by_place]
    if lack or not pairs:
        return not_tested(claim, lack or "nothing to compare", is_modelled=is_modelled)
    if any(one.is_lone for pair in pairs for one in pair):
        held, why = _unclear_for_one_sample()
    else:
        held, why = _opposed(pairs)
    places = max(len(one.estimates) + one.missing for one in (first, second))
    if held == "held" and places > len(pairs):
        held, why = "unclear", _unknown(Finding(missing=places - len(pairs)))
    sides = list(zip(names, zip(*pairs, strict=True), strict=True))
    told = ", ".join(f"{name} {_listed(side, claim.unit)}" for name, side in sides)
    points = [replace(one, where=_place(name, one.where)) for name, side in sides for one in side]
    return verdict(claim.text, held, why, claim, points, is_modelled=is_modelled, told=told)


def _opposed(pairs: Sequence[tuple[Estimate, Estimate]]) -> tuple[Held, str]:
    chance = CHANCE / len(pairs)
    if any(_side(a.interval(chance)) * _side(b.interval(chance)) == 1 for a, b in pairs):
        return "not held", ""
    if any(_moves_alone(*pair, chance) or _moves_alone(*pair[::-1], chance) for pair in pairs):
        return "not held", f"one of them within {percent(SAME)} of no change"
    if all(_side(a.interval()) * _side(b.interval()) == -1 for a, b in pairs):
        return "held", ""
    return "unclear", "an interval includes no change"


def _moves_alone(one: Estimate, other: Estimate, chance: float) -> bool:
    """Whether `one` is off 1 for certain while `other` is as good as 1; two ways to err share the chance."""
    return _side(one.interval(chance / 2)) != 0 and _same(other, chance / 2)


def _unknown(finding: Finding) -> str:
    return f"without numbers of {finding.missing} more" if finding.missing else ""


def _place(*parts: str) -> str:
    return ", ".join(filter(None, parts))


def _side(interval: tuple[float, float]) -> int:
    """Above 1, below it, or neither for certain."""
    return 1 if interval[0] > 1 else -1 if interval[1] < 1 else 0


def differs(claim: Claim, finding: Finding, *, is_modelled: bool = False) -> ClaimVerdict:
    """Held when some ratio is off 1 by more than `SAME` for certain, not held when none is."""
    if finding.lack or not finding.estimates:
        return not_tested(claim, finding.lack or "nothing to compare", is_modelled=is_modelled)
    estimates = [replace(one, margin=0.0) for one in finding.estimates]
    chance = CHANCE / len(estimates)
    if any(one.is_lone for one in estimates):
        held, why = _unclear_for_one_sample()
    elif any(_SAME_BAND.refutes(one.interval(chance)) for one in estimates):
        held, why = "held", _unknown(finding)
    elif not all(_same(one, CHANCE) for one in estimates):
        held, why = "unclear", f"no interval is wholly beyond {percent(SAME)}"
    elif finding.missing:
        held, why = "unclear", _unknown(finding)
    else:
        held, why = "not held", f"within {percent(SAME)} of each other"
    return verdict(claim.text, held, why, claim, finding.estimates, is_modelled=is_modelled)


def _everywhere(wanted: Band, estimates: Sequence[Estimate]) -> tuple[Held, str]:
    chance = CHANCE / len(estimates)
    known = [one for one in estimates if not one.is_lone]
    same = [one for one in known if wanted.is_change and one.is_ratio and _same(one, chance)]
    against = [one for one in known if one in same or wanted.refutes(one.interval(chance))]
    if against:
        many = f"in {len(against)} of {len(estimates)} places" if len(estimates) > 1 else ""
        why = f"within {percent(SAME)} of no change" if len(same) == len(against) else _beside(wanted, against)
        return "not held", " ".join(filter(None, (why, many)))
    if len(known) < len(estimates):
        return _unclear_for_one_sample()
    if all(wanted.holds(one.interval()) for one in estimates):
        return "held", ""
    if all(one.margin for one in estimates):
        return "unclear", f"a cost model is not trusted with less than {percent(SAME)}"
    return "unclear", "the interval reaches across"


def _beside(wanted: Band, estimates: Sequence[Estimate]) -> str:
    """On which side of a range the numbers lie: one that is beyond it may be more of what was claimed."""
    if math.isinf(wanted.low) or math.isinf(wanted.high):
        return ""
    below = [one for one in estimates if one.value < wanted.low]
    return "below it" if len(below) == len(estimates) else "above it" if not below else "beside it"


def _same(one: Estimate, chance: float) -> bool:
    return _SAME_BAND.holds(one.interval(chance))


def _unclear_for_one_sample() -> tuple[Held, str]:
    return "unclear", "one sample has no interval"


def verdict(
    text: str,
    held: Held,
    why: str,
    claim: Claim,
    estimates: Sequence[Estimate],
    *,
    is_modelled: bool,
    told: str = "",
) -> ClaimVerdict:
    """The words and the numbers put together; `told` are the estimates in words, where they are not simply listed."""
    parts = [f"{MODELLED}: " if is_modelled else "", claim.quantity, " ", told or _listed(estimates, claim.unit)]
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
    write = _WRITERS.get(unit) or (lambda value: _count(value, unit))
    low, high = replace(one, margin=0.0).interval()
    span = "" if one.samples < 2 or low == high else f" [{write(low)}, {write(high)}]"
    return f"{write(one.value)}{span}" + (f" at {one.where}" if one.where else "")


def _point(one: Estimate) -> dict[str, Any]:
    low, high = replace(one, margin=0.0).interval()
    known = one.samples > 1 or one.is_exact
    return {
        "where": one.where,
        "value": one.value,
        "low": low if known else None,
        "high": high if known else None,
        "samples": one.samples,
    }


def _ratio(value: float) -> str:
    return f"×{value:.3g}" if value < 1000 else f"×{value:,.0f}"


def _count(value: float, unit: str) -> str:
    number = f"{value:,.0f}" if value >= 100 or value == round(value) else f"{value:.3g}"
    return f"{number} {unit}".rstrip()


def _share(value: float) -> str:
    return f"{value:.1%}".replace("%", " %")


_WRITERS: dict[str, Callable[[float], str]] = {"x": _ratio, "%": _share, "s": format_seconds}
