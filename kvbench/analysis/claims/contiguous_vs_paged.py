"""`contiguous-vs-paged`: what of the memory holds tokens, and how many sequences fit beside each other."""

from __future__ import annotations

from kvbench.analysis.claims.estimates import levels, ratios
from kvbench.analysis.claims.evidence import Evidence
from kvbench.analysis.claims.judge import Claim, between, each, everywhere, more_than
from kvbench.analysis.claims.quantities import filled_share
from kvbench.analysis.claims.types import ClaimVerdict

RESERVED = {"allocator": "contiguous", "reservation": "max"}
PAGED = {"allocator": "paged"}
FILLED = "slots with a token over slots held:"
EMPTY = Claim("Reserving the maximum fills 20 to 40 % of the memory", FILLED, between(0.2, 0.4, "20 to 40 %"), "%")
FULL = Claim("Paging fills more than 95 %", FILLED, more_than(0.95, "more than 95 %"), "%")
CONCURRENCY = Claim(
    "Paging serves two to four times as many sequences at equal memory",
    "sequences served at once, mean over time, paged over reserved:",
    between(2, 4),
)


def check(evidence: Evidence) -> list[ClaimVerdict]:
    """Reserving by each maximum on its own, for what it wastes depends on it."""
    modelled = evidence.is_exact
    more = ratios(evidence, "active_sequences_mean", PAGED, RESERVED)
    return [
        *each(EMPTY, levels(evidence, filled_share, RESERVED), is_modelled=modelled),
        everywhere(FULL, levels(evidence, filled_share, PAGED), is_modelled=modelled),
        *each(CONCURRENCY, more, is_modelled=modelled),
    ]
