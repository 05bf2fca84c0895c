"""Whether an output is right: every number there, every row near its reference."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

TOLERANCE = {"fp32": 1e-4, "fp16": 5e-3, "bf16": 3e-2}
"""Most that a row may be off, ‖row − reference‖ ÷ ‖reference‖, by the dtype in which the kernel computes: some units in
its last place, over sums of thousands of terms. K and V are those that are stored: their dtype costs nothing here."""


def verdict(output: Tensor, expected: Tensor, query_dtype: str) -> tuple[float, str | None]:
    """The worst row's error, and why the output is wrong, None when it is right. Rows whose reference is zero
    (sequences without tokens) must be zero."""
    found = output.detach().double().cpu().reshape(-1, output.shape[-1])
    wanted = expected.reshape(found.shape)
    is_missing = found.isnan()
    if bool(is_missing.any()):
        rows = int(is_missing.any(dim=1).sum())
        return 0.0, f"{rows} of {len(found)} rows hold NaN: not written, or computed from what is no token"
    if bool(found.isinf().any()):
        return 0.0, f"{int(found.isinf().any(dim=1).sum())} of {len(found)} rows hold infinities"
    off = (found - wanted).norm(dim=1)
    size = wanted.norm(dim=1)
    if bool((off[size == 0] > 0).any()):
        return 0.0, "a row without tokens is not zero"
    if not bool((size > 0).any()):
        return 0.0, None
    error = float((off[size > 0] / size[size > 0]).max())
    limit = TOLERANCE[query_dtype]
    return error, None if error <= limit else f"a row is {error:.1e} of its size off, {limit:.0e} is allowed"
