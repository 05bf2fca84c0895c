"""KV and weight dtypes: bytes per element, scales, and the spellings people use."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from kvbench.errors import UsageError


@dataclass(frozen=True, slots=True)
class StorageDtype:
    """How one number is stored.

    `scale_bytes` is what a quantised dtype adds for K and again for V, per token and KV head
    (a float32 scale that lives in the block).
    """

    name: str
    bytes_per_element: Fraction
    scale_bytes: int = 0


KV_DTYPES = ("fp32", "fp16", "bf16", "fp8_e4m3", "fp8_e5m2", "int8")
"""What a pool can hold K and V in, by the engine"""
SCALES = ("token-head", "tensor-absmax", "tensor-percentile")
"""Where a narrow KV dtype has its scales: one per token and head in the block, or one per layer and K or V beside the
pool, from the largest magnitude of a calibration pass or from a percentile of the magnitudes."""


def scales_per_token(kv_scales: str) -> bool:
    """Whether the scales lie in the blocks; `UsageError` for an unknown kind of scales."""
    if kv_scales not in SCALES:
        raise UsageError(f"unknown KV scales {kv_scales!r}", hint=f"one of {', '.join(SCALES)}")
    return kv_scales == "token-head"


DTYPES: dict[str, StorageDtype] = {
    d.name: d
    for d in (
        StorageDtype("fp32", Fraction(4)),
        StorageDtype("fp16", Fraction(2)),
        StorageDtype("bf16", Fraction(2)),
        StorageDtype("fp8_e4m3", Fraction(1), scale_bytes=4),
        StorageDtype("fp8_e5m2", Fraction(1), scale_bytes=4),
        StorageDtype("int8", Fraction(1), scale_bytes=4),
        StorageDtype("int4", Fraction(1, 2), scale_bytes=4),
    )
}

ALIASES: dict[str, str] = {
    "float32": "fp32", "float": "fp32", "f32": "fp32",
    "float16": "fp16", "half": "fp16", "f16": "fp16",
    "bfloat16": "bf16",
    "fp8": "fp8_e4m3", "e4m3": "fp8_e4m3", "float8_e4m3fn": "fp8_e4m3",
    "e5m2": "fp8_e5m2", "float8_e5m2": "fp8_e5m2",
}  # fmt: skip


def canonical_dtype(name: str) -> str:
    """`"bfloat16"` → `"bf16"`; an unknown name comes back unchanged, for the caller to refuse."""
    return ALIASES.get(name.lower(), name.lower())


def storage_dtype(name: str) -> StorageDtype:
    """The dtype by any of its spellings; `UsageError` when there is none."""
    found = DTYPES.get(canonical_dtype(name))
    if found is None:
        raise UsageError(f"unknown dtype {name!r}", hint=f"one of {', '.join(DTYPES)}")
    return found
