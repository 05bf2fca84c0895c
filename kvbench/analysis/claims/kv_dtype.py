"""`kv-dtype`: 8-bit KV against 16 bits, in capacity, prefill speed, decode speed and error, each on its own."""

from __future__ import annotations

from kvbench.analysis.claims.estimates import ratios
from kvbench.analysis.claims.evidence import Evidence
from kvbench.analysis.claims.judge import DIFFERENT, Claim, about, differs, everywhere, more_than
from kvbench.analysis.claims.quantities import kv_bytes_per_token
from kvbench.analysis.claims.types import ClaimVerdict

EIGHT_BITS = {"kv_dtype": ("fp8_e4m3", "fp8_e5m2", "int8")}
SIXTEEN_BITS = ("bf16", "fp16")
CAPACITY = Claim("fp8 and int8 halve KV bytes", "bytes per token, scales included, over 16 bits:", about(1 / 2, "×0.5"))
PREFILL = Claim("Prefill speed changes", "prefill tokens per busy second, over 16 bits:", DIFFERENT)
DECODE = Claim("Decode speed changes", "decode time of the kernel, over 16 bits:", DIFFERENT)
ERROR = Claim("Numeric error grows", "relative error of the logits, over 16 bits:", more_than(1))


def check(evidence: Evidence) -> list[ClaimVerdict]:
    """Every 8-bit dtype and scale over bf16, or fp16 where the run has no bf16."""
    modelled = evidence.is_exact
    scales = ("kv_scales",)
    engine, kernel = _sixteen(evidence, "engine"), _sixteen(evidence, "kernel")
    size = ratios(evidence, kv_bytes_per_token, EIGHT_BITS, engine, free=scales, is_arithmetic=True)
    prefill = ratios(evidence, "prefill_tokens_per_busy_s", EIGHT_BITS, engine, free=scales)
    decode = ratios(evidence, "decode_s", EIGHT_BITS, kernel, free=scales, kind="kernel")
    error = ratios(evidence, "kv_error_rel_rms", EIGHT_BITS, engine, free=scales)
    return [
        everywhere(CAPACITY, size, is_modelled=modelled),
        differs(PREFILL, prefill, is_modelled=modelled),
        differs(DECODE, decode, is_modelled=modelled),
        everywhere(ERROR, error, is_modelled=modelled),
    ]


def _sixteen(evidence: Evidence, kind: str) -> dict[str, str]:
    there = evidence.values_of("kv_dtype", kind)
    return {"kv_dtype": next((dtype for dtype in SIXTEEN_BITS if dtype in there), SIXTEEN_BITS[0])}
