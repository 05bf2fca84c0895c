"""`speculative`: each kind of drafting against plain decoding."""

from __future__ import annotations

from kvbench.analysis.claims.estimates import Finding, levels, ratios
from kvbench.analysis.claims.evidence import Evidence
from kvbench.analysis.claims.judge import Claim, everywhere, less_than, more_than, not_tested
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
LATENCY = Claim("Latency falls where drafts are cheap and right", "median TPOT, over plain decoding:", less_than(1))


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
    for kind in kinds:
        faster = ratios(evidence, "tpot_p50_s", {"speculation": kind}, PLAIN, free=("draft_tokens",))
        found.append(everywhere(LATENCY, faster, where=_right(evidence, kind), is_modelled=modelled))
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


def _right(evidence: Evidence, kind: str) -> str:
    """The kind, and what share of its drafts was right."""
    shares = [
        share for case in evidence.where({"speculation": kind}) for share in case.values("accepted_share").values()
    ]
    if not shares:
        return kind
    low, high = (f"{100 * share:.0f}" for share in (min(shares), max(shares)))
    return f"{kind}, {low} % accepted" if low == high else f"{kind}, {low} to {high} % accepted"
