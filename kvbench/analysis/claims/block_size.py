"""`block-size`: look-ups of tiny blocks, tails of large ones, and where the best lies."""

from __future__ import annotations

from kvbench.analysis.claims.best import best_among
from kvbench.analysis.claims.estimates import ratios
from kvbench.analysis.claims.evidence import Evidence
from kvbench.analysis.claims.judge import Claim, everywhere, more_than
from kvbench.analysis.claims.types import ClaimVerdict

TINY, SWEET_SPOT, LARGE = 4, (16, 32, 64), 128
LOOK_UPS = Claim(
    "Tiny blocks (4) cost kernel time per look-up",
    "decode time of the kernel, blocks of 4 over blocks of 16:",
    more_than(1),
)
TAILS = Claim(
    "Large blocks (128 and more) waste tails",
    "slots without a token, blocks of 128 over blocks of 64:",
    more_than(1),
)
BEST = Claim(
    "The sweet spot is 16 to 64",
    "output tokens/s, best block size of 16 to 64 over the best other:",
    more_than(1),
)


def check(evidence: Evidence) -> list[ClaimVerdict]:
    """Kernel cases for look-ups, engine cases for tails and throughput."""
    modelled = evidence.is_exact
    small = {"block_size": TINY}, {"block_size": SWEET_SPOT[0]}
    tails = {"block_size": LARGE}, {"block_size": SWEET_SPOT[-1]}
    return [
        everywhere(LOOK_UPS, ratios(evidence, "decode_s", *small, kind="kernel"), is_modelled=modelled),
        everywhere(TAILS, ratios(evidence, "internal_share_mean", *tails), is_modelled=modelled),
        best_among(BEST, evidence, "output_tokens_per_s", "block_size", SWEET_SPOT),
    ]
