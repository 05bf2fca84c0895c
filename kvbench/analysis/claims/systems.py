"""`systems`: what the policies of the presets cost and buy, each against the nearest preset without it."""

from __future__ import annotations

from kvbench.analysis.claims.estimates import most, ratios
from kvbench.analysis.claims.evidence import Evidence
from kvbench.analysis.claims.judge import Band, Claim, everywhere, less_than, more_than
from kvbench.analysis.claims.types import ClaimVerdict

CONTIGUOUS, ORCA, VLLM, SGLANG, PACKING, PROMISING = (
    {"preset": name} for name in ("contiguous", "orca", "vllm", "sglang", "trtllm-max-utilization", "trtllm-no-evict")
)
TAIL = Claim("Batches that change every step shorten the tail", "E2E p95, orca over contiguous:", less_than(1))
PAGING = Claim("Paging buys concurrency", "sequences served at once, mean over time, vllm over orca:", more_than(1))
CACHING = Claim("Paging and prefix caching buy throughput", "output tokens/s, vllm over orca:", more_than(1))
MATCHING = Claim("Longest prefix first buys hits", "prefix hit rate, sglang over vllm:", more_than(1))
PAUSES = Claim(
    "trtllm-no-evict buys freedom from pauses", "preemptions, most in a sample:", Band("none", low=0, high=0), ""
)
COST = Claim(
    "trtllm-no-evict costs concurrency",
    "sequences served at once, mean over time, trtllm-no-evict over trtllm-max-utilization:",
    less_than(1),
)


def check(evidence: Evidence) -> list[ClaimVerdict]:
    """One policy more from preset to preset."""
    modelled = evidence.is_exact
    served = "active_sequences_mean"
    return [
        everywhere(TAIL, ratios(evidence, "e2e_p95_s", ORCA, CONTIGUOUS), is_modelled=modelled),
        everywhere(PAGING, ratios(evidence, served, VLLM, ORCA), is_modelled=modelled),
        everywhere(CACHING, ratios(evidence, "output_tokens_per_s", VLLM, ORCA), is_modelled=modelled),
        everywhere(MATCHING, ratios(evidence, "prefix_hit_rate", SGLANG, VLLM), is_modelled=modelled),
        everywhere(PAUSES, most(evidence, "preemptions", PROMISING), is_modelled=modelled),
        everywhere(COST, ratios(evidence, served, PROMISING, PACKING), is_modelled=modelled),
    ]
