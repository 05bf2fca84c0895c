"""`batch-policy`: iteration-level batches against static ones, under every arrival."""

from __future__ import annotations

from kvbench.analysis.claims.estimates import ratios
from kvbench.analysis.claims.evidence import Evidence
from kvbench.analysis.claims.judge import Claim, everywhere, less_than, more_than
from kvbench.analysis.claims.types import ClaimVerdict

ITERATION, STATIC = {"batch_policy": "continuous"}, {"batch_policy": "static"}
PARTS = {
    "e2e_p50_s": Claim("Short requests leave early", "median E2E, continuous over static:", less_than(1)),
    "queue_mean_s": Claim("Waiting requests join early", "mean time queued, continuous over static:", less_than(1)),
    "output_tokens_per_s": Claim("Throughput gains", "output tokens/s, continuous over static:", more_than(1)),
    "e2e_p95_s": Claim("Tail latency gains", "E2E p95, continuous over static:", less_than(1)),
}


def check(evidence: Evidence) -> list[ClaimVerdict]:
    """Continuous batches over static ones."""
    return [
        everywhere(claim, ratios(evidence, metric, ITERATION, STATIC), is_modelled=evidence.is_exact)
        for metric, claim in PARTS.items()
    ]
