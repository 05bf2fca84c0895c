"""`offload`: what tiers below the device bring, what they cost, and whether that follows from the price of a copy."""

from __future__ import annotations

from kvbench.analysis.claims.estimates import levels, ratios
from kvbench.analysis.claims.evidence import Evidence
from kvbench.analysis.claims.judge import Band, Claim, everywhere, less_than, more_than, opposed
from kvbench.analysis.claims.quantities import copy_over_computing
from kvbench.analysis.claims.types import ClaimVerdict

TIERS = {"prefix_cache": ("hash", "radix"), "offload": ("host", "host+disk")}
BLOCKING = {**TIERS, "promotion": "blocking"}
ALONE = {"prefix_cache": ("hash", "radix"), "offload": "none"}
FREE = ("host_memory", "disk_memory", "offload_when", "store_threshold", "promotion")
HIT_RATE = Claim("A lower tier raises the hit rate", "prefix hit rate, with a tier over without:", more_than(1))
STALLS = Claim(
    "Promotions stall on the critical path", "time that steps waited for blocks:", more_than(0, "more than 0 s"), "s"
)
PAYS = Claim(
    "A tier pays where a copy is cheaper than computing again",
    "stall of a promoted block over computing it, and output tokens/s with a tier over without:",
    Band("one above ×1, one below"),
)
SOONER = Claim("A tier brings the first token sooner", "median TTFT, with a tier over without:", less_than(1))


def check(evidence: Evidence) -> list[ClaimVerdict]:
    """Every tier and way of using it over the prefix cache alone; stalls and what pays where promotion blocks."""
    modelled = evidence.is_exact
    speed = ratios(evidence, "output_tokens_per_s", BLOCKING, ALONE, free=FREE)
    price = levels(evidence, copy_over_computing, BLOCKING, is_scale=True)
    return [
        everywhere(HIT_RATE, ratios(evidence, "prefix_hit_rate", TIERS, ALONE, free=FREE), is_modelled=modelled),
        everywhere(STALLS, levels(evidence, "promotion_stall_s", BLOCKING, is_scale=True), is_modelled=modelled),
        opposed(PAYS, price, speed, names=("stall", "tokens/s"), is_modelled=modelled),
        everywhere(SOONER, ratios(evidence, "ttft_p50_s", TIERS, ALONE, free=FREE), is_modelled=modelled),
    ]
