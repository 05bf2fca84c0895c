"""`mla`: a latent cache against full and grouped heads at equal model width."""

from __future__ import annotations

from typing import Any

from kvbench.analysis.claims.estimates import ratios
from kvbench.analysis.claims.evidence import Evidence, whole_numbers
from kvbench.analysis.claims.judge import Claim, about, everywhere, less_than, more_than
from kvbench.analysis.claims.quantities import kv_bytes_per_token
from kvbench.analysis.claims.types import ClaimVerdict

LATENT, FULL, GROUPED = ({"attention_mode": mode} for mode in ("mla", "mha", "gqa"))
FREE = ("model_name",)
BYTES = Claim(
    "A latent cache needs a fraction of the bytes of MHA", "bytes per token, latent over MHA:", less_than(0.5)
)
SEQUENCES = Claim(
    "It serves more sequences", "sequences served at once, mean over time, latent over MHA:", more_than(1)
)
NEAR = Claim("Grouped heads come near it", "bytes per token, GQA over latent:", about(1, "×1"))
DECODE = Claim(
    "Fewer bytes make decoding faster", "median TPOT with equally many sequences, latent over MHA:", less_than(1)
)


def check(evidence: Evidence) -> list[ClaimVerdict]:
    """Memory and concurrency with many seats, decode time with the fewest, where all models fill them."""
    modelled = evidence.is_exact
    seats = whole_numbers(evidence.where({}), "max_sequences")
    most: dict[str, Any] = {"max_sequences": max(seats)} if seats else {}
    least: dict[str, Any] = {"max_sequences": min(seats)} if seats else {}
    small = ratios(evidence, kv_bytes_per_token, LATENT, FULL, free=FREE, is_arithmetic=True)
    near = ratios(evidence, kv_bytes_per_token, GROUPED, LATENT, free=FREE, is_arithmetic=True)
    more = ratios(evidence, "active_sequences_mean", LATENT | most, FULL | most, free=FREE)
    decode = ratios(evidence, "tpot_p50_s", LATENT | least, FULL | least, free=FREE)
    return [
        everywhere(BYTES, small, is_modelled=modelled),
        everywhere(SEQUENCES, more, is_modelled=modelled),
        everywhere(NEAR, near, is_modelled=modelled),
        everywhere(DECODE, decode, is_modelled=modelled),
    ]
