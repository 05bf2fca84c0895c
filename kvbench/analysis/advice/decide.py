"""One recommendation from candidates with intervals, what the others would lose, and when the data cannot tell.

The order of things: whoever cannot serve, may not be used or misses a service-level objective is out. Of the rest the
one with the highest throughput leads; those whose difference from it has 0 in its interval are tied with it. Among tied
ones a fixed rule chooses, and says so (`_of_tied`). Differences are paired: the same requests under both.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from kvbench.analysis.advice.candidates import Candidate, Gaps, Range
from kvbench.analysis.pareto import pareto_front
from kvbench.units import format_seconds

Verdict = Literal["clear", "tied", "alone", "none"]
NEAR = 0.005
"""A tied candidate is preferred to the best while what is predicted to be lost by it is no more than this."""


@dataclass(frozen=True, slots=True)
class Slo:
    """What a candidate's median latencies must not exceed."""

    ttft_s: float | None = None
    tpot_s: float | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """`chosen` and the others are places in the list of candidates; None where there is none."""

    verdict: Verdict
    chosen: int | None
    runner_up: int | None
    tied: tuple[int, ...]
    """Those that the data cannot tell from the best, itself included, in the candidates' order"""
    rule: str
    """How one of several tied ones was chosen; empty where none were"""
    front: tuple[bool, ...]
    """Whether no other open candidate has more throughput at no worse latency"""
    losses: tuple[Range | None, ...]
    """Share of throughput that each loses against the chosen one: 0.03 is 3 % less; negative where it has more"""
    missed: tuple[str | None, ...]
    """Which objective each open candidate misses, in words"""
    doubtful: tuple[bool, ...]
    """Whether an objective lies inside the interval of the candidate's latency"""

    @property
    def worst(self) -> int | None:
        """The candidate that loses most."""
        losses = [(loss, at) for at, loss in enumerate(self.losses) if loss is not None and at != self.chosen]
        known = [(loss.value, at) for loss, at in losses if math.isfinite(loss.value)]
        return max(known)[1] if known else None


def decide(
    candidates: Sequence[Candidate],
    gaps: Gaps,
    *,
    slo: Slo | None = None,
    usual: Sequence[int] = (),
    neighbours: Sequence[Sequence[int]] = (),
) -> Decision:
    """The decision over candidates; `gaps` are `[n, n]` of them in the same order.

    `usual` are those that servers start with; `neighbours[i]` those next to candidate i, for the rule among tied ones.
    """
    slo = slo or Slo()
    missed = tuple(_missed(c, slo) if c.is_open else None for c in candidates)
    doubtful = tuple(c.is_open and _is_doubtful(c, slo) for c in candidates)
    front = _front(candidates)
    feasible = [at for at, c in enumerate(candidates) if c.is_open and missed[at] is None]
    if not feasible:
        losses: tuple[Range | None, ...] = (None,) * len(candidates)
        return Decision("none", None, None, (), "", front, losses, missed, doubtful)
    ranked = sorted(feasible, key=lambda at: -_standing(at, feasible, gaps))
    best = ranked[0]
    tied = tuple(sorted(at for at in feasible if at == best or not gaps.can_tell(best, at)))
    chosen, rule = _of_tied(tied, best, candidates, gaps, usual, neighbours) if len(tied) > 1 else (best, "")
    others = [at for at in ranked if at != chosen]
    verdict: Verdict = "tied" if len(tied) > 1 else "clear" if others else "alone"
    return Decision(
        verdict=verdict,
        chosen=chosen,
        runner_up=others[0] if others else None,
        tied=tied,
        rule=rule,
        front=front,
        losses=tuple(_loss(gaps, at, chosen) if c.is_open else None for at, c in enumerate(candidates)),
        missed=missed,
        doubtful=doubtful,
    )


def _standing(at: int, among: Sequence[int], gaps: Gaps) -> float:
    """Mean lead over the others. Differences of corrected predictions need not add up (a ahead of b, b of c, c of a),
    so no candidate is ranked by one of them. One that nothing is known of says nothing."""
    leads = [float(gaps.value[at, other]) for other in among]
    return sum(lead for lead in leads if math.isfinite(lead)) / len(among)


def _loss(gaps: Gaps, at: int, chosen: int) -> Range:
    more = gaps.between(at, chosen)
    return Range(-more.value, -more.high, -more.low)


def _of_tied(
    tied: tuple[int, ...],
    best: int,
    candidates: Sequence[Candidate],
    gaps: Gaps,
    usual: Sequence[int],
    neighbours: Sequence[Sequence[int]],
) -> tuple[int, str]:
    """Of those near the best: what loses least precision, of these the usual default, else the block size that is
    safest to be a little wrong about, whose worst neighbour does best."""
    near = [at for at in tied if _lost(gaps, at, best) <= NEAR]
    if len(near) == 1:
        return best, f"it leads the tied ones, which are behind by more than {NEAR:.1%}, by no certain difference"
    least = min(candidates[at].precision_lost for at in near)
    exact = [at for at in near if candidates[at].precision_lost == least]
    reason = "" if len(exact) == len(near) else "that lose least precision "
    if found := [at for at in exact if at in usual]:
        chosen = min(found, key=lambda at: _lost(gaps, at, best))
        return chosen, f"among tied ones {reason}the usual default, which is at most {NEAR:.1%} behind here"

    def open_neighbours(at: int) -> list[int]:
        return [n for n in neighbours[at] if candidates[n].is_open] if neighbours else []

    def worst_nearby(at: int) -> float:
        return min(-_lost(gaps, n, best) for n in (at, *open_neighbours(at)))

    most = max(len(open_neighbours(at)) for at in exact)
    between = [at for at in exact if len(open_neighbours(at)) == most]
    chosen = max(between, key=lambda at: (worst_nearby(at), -_lost(gaps, at, best)))
    told = ("with the highest value", "whose neighbour does best", "whose neighbours on both sides do best")[
        min(most, 2)
    ]
    return chosen, f"among tied ones {reason}within {NEAR:.1%} of the best the one {told}"


def _lost(gaps: Gaps, at: int, best: int) -> float:
    return -gaps.between(at, best).value


def _front(candidates: Sequence[Candidate]) -> tuple[bool, ...]:
    """Throughput against the latencies that all open candidates have."""
    latencies = [name for name in ("ttft_s", "tpot_s") if all(getattr(c, name) for c in candidates if c.is_open)]
    points = [
        [c.tokens_per_s.value if c.tokens_per_s and c.is_open else None, *(_value(c, name) for name in latencies)]
        for c in candidates
    ]
    return tuple(pareto_front(points, [True] + [False] * len(latencies)))


def _value(candidate: Candidate, name: str) -> float | None:
    found: Range | None = getattr(candidate, name)
    return None if found is None else found.value


def _missed(candidate: Candidate, slo: Slo) -> str | None:
    """The first objective that the candidate's value exceeds; one that it has no number for counts as missed."""
    for name, label in (("ttft_s", "TTFT"), ("tpot_s", "TPOT")):
        limit, value = getattr(slo, name), _value(candidate, name)
        if limit is not None and (value is None or not value <= limit):
            told = "is not known" if value is None else f"is {format_seconds(value)}"
            return f"{label} {told}, and {format_seconds(limit)} is allowed"
    return None


def _is_doubtful(candidate: Candidate, slo: Slo) -> bool:
    pairs = ((getattr(slo, name), getattr(candidate, name)) for name in ("ttft_s", "tpot_s"))
    return any(limit is not None and found is not None and found.low <= limit < found.high for limit, found in pairs)
