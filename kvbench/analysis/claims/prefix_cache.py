"""`prefix-cache`: work as conversations grow, and what hits bring and cost."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from kvbench.analysis.claims.estimates import Finding, labelled, levels, merged, ratios
from kvbench.analysis.claims.evidence import Evidence, whole_numbers
from kvbench.analysis.claims.judge import DIFFERENT, Claim, at_most, differs, everywhere, less_than, more_than
from kvbench.analysis.claims.quantities import prefill_tokens_per_turn
from kvbench.analysis.claims.types import ClaimVerdict

NONE: dict[str, Any] = {"prefix_cache": "none"}
HASH: dict[str, Any] = {"prefix_cache": "hash", "hash_function": "xxh3-128", "eviction": "lru"}
RADIX: dict[str, Any] = {"prefix_cache": "radix", "eviction": "lru"}
INDEX = ("hash_function", "eviction")
PER_TURN = "prefill tokens per turn, each number of turns over the next smaller:"
SQUARE = Claim("Without caching prefill grows with the square of the conversation", PER_TURN, more_than(1))
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
        everywhere(SQUARE, _growth(evidence, NONE), is_modelled=modelled),
        everywhere(LINEAR, _growth(evidence, HASH, only_ends=True), is_modelled=modelled),
        everywhere(SOONER, ratios(evidence, "ttft_p50_s", HASH, NONE, free=INDEX), is_modelled=modelled),
        everywhere(MEMORY, levels(evidence, "live_cached_tokens_max", HASH), is_modelled=modelled),
        differs(LOOK_UP, ratios(evidence, "prefix_lookup_s", RADIX, HASH, free=INDEX), is_modelled=modelled),
    ]


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
