"""`reblocking`: a live pool goes on with another block size: is anything lost, and is the price paid once?"""

from __future__ import annotations

from kvbench.analysis.claims.estimates import Finding, labelled, levels, merged, most, ratios
from kvbench.analysis.claims.evidence import Evidence, Row
from kvbench.analysis.claims.judge import Band, Claim, at_most, each, everywhere, less_than
from kvbench.analysis.claims.types import ClaimVerdict

SIZES = (16, 32)
CONTENTS = Claim(
    "A pool goes on in other blocks without losing contents",
    "cached tokens that could no longer be found, most in a sample:",
    Band("none", low=0, high=0),
    "tokens",
)
ONCE = Claim("Its cost is paid once", "time of re-blocking:", less_than(0.01, "less than 1 % of the run"), "%")
AFTERWARDS = Claim(
    "Afterwards it serves like a pool that always had those blocks",
    "median TPOT, over a pool that has them from the start:",
    at_most(1.02),
)


def check(evidence: Evidence) -> list[ClaimVerdict]:
    """Both directions, 16 to 32 and back."""
    modelled = evidence.is_exact
    changed = {"reblock_to": SIZES}
    return [
        *each(CONTENTS, most(evidence, "reblock_dropped_tokens", changed), is_modelled=modelled),
        everywhere(ONCE, levels(evidence, _share_of_run, changed), is_modelled=modelled),
        everywhere(AFTERWARDS, _afterwards(evidence), is_modelled=modelled),
    ]


def _afterwards(evidence: Evidence) -> Finding:
    """Over the pool that keeps the size that this one changes to."""
    found = []
    for old, new in (SIZES, SIZES[::-1]):
        left, right = {"block_size": old, "reblock_to": new}, {"block_size": new, "reblock_to": "none"}
        found.append(labelled(ratios(evidence, "tpot_p50_s", left, right), f"{old} to {new}"))
    return merged(*found)


def _share_of_run(row: Row) -> float | None:
    took, wall = row.get("reblock_s"), row.get("wall_s")
    return took / wall if took is not None and wall else None
