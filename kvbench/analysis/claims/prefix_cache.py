"""`prefix-cache`: work as conversations grow, and what hits bring and cost."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from kvbench.analysis.claims.estimates import Finding, estimated, labelled, levels, merged, ratios
from kvbench.analysis.claims.evidence import CaseEvidence, Evidence, whole_numbers
from kvbench.analysis.claims.judge import DIFFERENT, Claim, about, at_most, differs, everywhere, less_than, more_than
from kvbench.analysis.claims.quantities import prefill_tokens_per_turn
from kvbench.analysis.claims.types import ClaimVerdict

NONE: dict[str, Any] = {"prefix_cache": "none"}
HASH: dict[str, Any] = {"prefix_cache": "hash", "hash_function": "xxh3-128", "eviction": "lru"}
RADIX: dict[str, Any] = {"prefix_cache": "radix", "eviction": "lru"}
INDEX = ("hash_function", "eviction")
PER_TURN = "prefill tokens per turn, each number of turns over the next smaller:"
SQUARE_TEXT = "Without caching prefill grows with the square of the conversation"
GROWS = Claim(SQUARE_TEXT, PER_TURN, more_than(1))
SQUARE = Claim(
    SQUARE_TEXT,
    "prefill tokens that one turn more adds to every turn, at each number of turns over at the smallest:",
    about(1, "×1"),
)
LINEAR = Claim(
    "With caching prefill grows linearly",
    "prefill tokens per turn, longest over shortest conversation:",
    at_most(1.1),
)
SOONER = Claim("Hits bring the first token sooner", "median TTFT, caching over none:", less_than(1))
MEMORY = Claim("Hits cost memory", "cached tokens kept, most at once:", more_than(0, "more than none"), "tokens")
LOOK_UP = Claim("A look-up costs more or less by radix than by hash", "time of look-ups, radix over hash:", DIFFERENT)


def check(evidence: Evidence) -> list[ClaimVerdict]:
    """Work per turn is constant where the whole grows linearly, and grows where the whole grows with the square."""
    modelled = evidence.is_exact
    return [
        _square(evidence),
        everywhere(LINEAR, _growth(evidence, HASH, only_ends=True), is_modelled=modelled),
        everywhere(SOONER, ratios(evidence, "ttft_p50_s", HASH, NONE, free=INDEX), is_modelled=modelled),
        everywhere(MEMORY, levels(evidence, "live_cached_tokens_max", HASH), is_modelled=modelled),
        differs(LOOK_UP, ratios(evidence, "prefix_lookup_s", RADIX, HASH, free=INDEX), is_modelled=modelled),
    ]


def _square(evidence: Evidence) -> ClaimVerdict:
    """The whole grows with the square where the work per turn grows, and by the same amount with every turn."""
    grows = everywhere(GROWS, _growth(evidence, NONE), is_modelled=evidence.is_exact)
    return everywhere(SQUARE, _bends(evidence), is_modelled=evidence.is_exact) if grows.held == "held" else grows


def _bends(evidence: Evidence) -> Finding:
    """How much more, or less, a further turn adds to every turn as the conversation grows: 1 on a straight line."""
    turns = whole_numbers(evidence.where(NONE), "turns")
    if len(turns) < 3:
        return Finding(lack="three numbers of turns tell the square from other growth, and the run has fewer")
    first, *later = pairwise(turns)
    found = [
        estimated(f"{step[0]} to {step[1]} turns", bends, is_ratio=True, is_exact=evidence.is_exact)
        for by_turns in _by_turns(evidence.where(NONE))
        for step in later
        if (bends := _bend(by_turns, first, step))
    ]
    return Finding(tuple(one for one in found if one), "" if found else "no sample has every number of turns")


def _by_turns(cases: list[CaseEvidence]) -> list[dict[int, dict[int, float]]]:
    """For cases that differ in turns alone: turns → sample → prefill tokens per turn."""
    groups: dict[str, dict[int, dict[int, float]]] = {}
    for case in cases:
        rest = str({name: value for name, value in case.axes.items() if name != "turns"})
        for turns in whole_numbers([case], "turns"):
            groups.setdefault(rest, {})[turns] = case.values(prefill_tokens_per_turn)
    return list(groups.values())


def _bend(by_turns: dict[int, dict[int, float]], first: tuple[int, int], step: tuple[int, int]) -> list[float]:
    """Of every sample the logarithm of the slope of a step over that of the first."""
    sides = [by_turns.get(turns, {}) for turns in (*first, *step)]
    found = []
    for number in sorted(set.intersection(*map(set, sides))):
        a, b, c, d = (side[number] for side in sides)
        slopes = (b - a) / (first[1] - first[0]), (d - c) / (step[1] - step[0])
        found += [math.log(slopes[1] / slopes[0])] if min(slopes) > 0 else []
    return found


def _growth(evidence: Evidence, settings: Mapping[str, Any], *, only_ends: bool = False) -> Finding:
    """Prefill tokens per turn, as the number of turns grows."""
    turns = whole_numbers(evidence.where(settings), "turns")
    if len(turns) < 2:
        told = " ".join(f"{name}={value}" for name, value in settings.items())
        return Finding(lack=f"the run has no two numbers of turns with {told}")
    steps = [(turns[0], turns[-1])] if only_ends else list(pairwise(turns))
    found = []
    for fewer, more in steps:
        sides = ({**settings, "turns": turns} for turns in (more, fewer))
        found.append(labelled(ratios(evidence, prefill_tokens_per_turn, *sides), f"{fewer} to {more} turns"))
    return merged(*found)
