"""`beam-cow`: memory of eight beams against eight copies."""

from __future__ import annotations

from kvbench.analysis.claims.estimates import Finding, ratios
from kvbench.analysis.claims.evidence import Evidence
from kvbench.analysis.claims.judge import Claim, about, everywhere
from kvbench.analysis.claims.types import ClaimVerdict

BEAMS, COPIES = {"beams": 8}, {"beams": 1, "n": 1}
THIRD = Claim(
    "8 beams over a shared 70-token prompt hold about 1/3 of the memory of 8 copies",
    "blocks held at the peak, beams over copies:",
    about(1 / 3, "×0.333"),
)


def check(evidence: Evidence) -> list[ClaimVerdict]:
    """Every block size on its own, over all lengths of output."""
    return [
        everywhere(THIRD, _held(evidence, size), where=f"blocks of {size}", is_modelled=evidence.is_exact)
        for size in evidence.values_of("block_size")
    ] or [everywhere(THIRD, ratios(evidence, "kv_utilisation_peak", BEAMS, COPIES))]


def _held(evidence: Evidence, size: object) -> Finding:
    left, right = {**BEAMS, "block_size": size}, {**COPIES, "block_size": size}
    return ratios(evidence, "kv_utilisation_peak", left, right, free=("requests", "temperature", "n"))
