"""`admission`: packing against promising every sequence its declared maximum."""

from __future__ import annotations

from kvbench.analysis.claims.estimates import differences, most, ratios
from kvbench.analysis.claims.evidence import Evidence
from kvbench.analysis.claims.judge import Band, Claim, everywhere, less_than, more_than, opposed
from kvbench.analysis.claims.types import ClaimVerdict

PACKING, PROMISING = {"admission": "max-utilization"}, {"admission": "guaranteed-no-evict"}
THROUGHPUT = Claim("Packing raises throughput", "output tokens/s, packing over promising:", more_than(1))
PREEMPTIONS = Claim(
    "Packing raises preemptions", "preemptions, packing minus promising:", more_than(0, "more than none"), ""
)
PAUSES = Claim("guaranteed-no-evict has no pauses", "preemptions, most in a sample:", Band("none", low=0, high=0), "")
CONCURRENCY = Claim(
    "guaranteed-no-evict gives up concurrency",
    "sequences served at once, mean over time, promising over packing:",
    less_than(1),
)
TAILS = Claim(
    "TTFT and TPOT tails move in opposite directions",
    "p95, packing over promising:",
    Band("one above ×1, one below"),
)


def check(evidence: Evidence) -> list[ClaimVerdict]:
    """Packing and promising under every batch policy."""
    modelled = evidence.is_exact
    both = PACKING, PROMISING
    tails = [ratios(evidence, metric, *both) for metric in ("ttft_p95_s", "tpot_p95_s")]
    fewer = ratios(evidence, "active_sequences_mean", PROMISING, PACKING)
    return [
        everywhere(THROUGHPUT, ratios(evidence, "output_tokens_per_s", *both), is_modelled=modelled),
        everywhere(PREEMPTIONS, differences(evidence, "preemptions", *both), is_modelled=modelled),
        everywhere(PAUSES, most(evidence, "preemptions", PROMISING), is_modelled=modelled),
        everywhere(CONCURRENCY, fewer, is_modelled=modelled),
        opposed(TAILS, *tails, names=("TTFT", "TPOT"), is_modelled=modelled),
    ]
