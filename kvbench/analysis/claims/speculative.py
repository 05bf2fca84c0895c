"""`speculative`: each kind of drafting against plain decoding."""

from __future__ import annotations

from kvbench.analysis.claims.estimates import Finding, levels, ratios
from kvbench.analysis.claims.evidence import Evidence
from kvbench.analysis.claims.judge import Claim, everywhere, less_than, more_than, not_tested, percent
from kvbench.analysis.claims.quantities import rejected_drafts
from kvbench.analysis.claims.types import ClaimVerdict

PLAIN = {"speculation": "none"}
SEVERAL = Claim(
    "Speculation brings several tokens per step",
    "tokens per decoding sequence and step:",
    more_than(1, "more than 1 token"),
    "tokens",
)
ROLLS_BACK = Claim(
    "Rejected drafts are rolled back", "block tables cut back:", more_than(0, "more than none"), "rollbacks"
)
LATENCY = Claim(
    "Latency falls where drafts are right, if they are cheap", "median TPOT, over plain decoding:", less_than(1)
)
RIGHT = 0.5
"""Share of drafts that must be accepted for the claim to be about them."""


def check(evidence: Evidence) -> list[ClaimVerdict]:
    """Tokens per step and latency of every kind of drafting on its own."""
    kinds = [kind for kind in evidence.values_of("speculation") if kind != "none"]
    if not kinds:
        return [not_tested(claim, "the run has no case that speculates") for claim in (SEVERAL, ROLLS_BACK, LATENCY)]
    modelled = evidence.is_exact
    found = [
        everywhere(
            SEVERAL, levels(evidence, "tokens_per_decode", {"speculation": kind}), where=kind, is_modelled=modelled
        )
        for kind in kinds
    ]
    found.append(everywhere(ROLLS_BACK, _rollbacks(evidence, kinds), is_modelled=modelled))
    found += [_latency(evidence, kind) for kind in kinds]
    return found


def _rollbacks(evidence: Evidence, kinds: list[str]) -> Finding:
    """Of the cases in which some draft was rejected."""
    cases = [
        case
        for case in evidence.where({"speculation": tuple(kinds)})
        if any(rejected > 0 for rejected in case.values(rejected_drafts).values())
    ]
    if not cases:
        return Finding(lack="no draft was rejected in this run")
    return levels(Evidence(tuple(cases), evidence.is_exact), "rollbacks", {})


def _latency(evidence: Evidence, kind: str) -> ClaimVerdict:
    """Of drafts that are mostly wrong the claim says nothing."""
    cases = evidence.where({"speculation": kind})
    shares = [share for case in cases for share in case.values("accepted_share").values()]
    where = f"{kind}, {_range(shares)} accepted" if shares else kind
    if shares and max(shares) < RIGHT:
        text = f"{LATENCY.text} ({where})"
        return not_tested(text, "these drafts are mostly wrong", is_modelled=evidence.is_exact)
    faster = ratios(evidence, "tpot_p50_s", {"speculation": kind}, PLAIN, free=("draft_tokens",))
    return everywhere(LATENCY, faster, where=where, is_modelled=evidence.is_exact)


def _range(shares: list[float]) -> str:
    low, high = percent(round(min(shares), 2)), percent(round(max(shares), 2))
    return low if low == high else f"{low} to {high}"
