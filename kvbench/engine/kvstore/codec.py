"""Stored forms of K and V in plain torch: the reference of the kernels, and the path on CUDA.

Floating-point forms round to nearest even. int8 is symmetric: q = round(x / s) with s = max |x| / 127 over the
elements of one token and head, so that ±127 is used and −128 never. A row whose s is 0 or not finite is stored as
zeros; a row with an infinity or a NaN keeps that as its scale and reads back as NaN.
"""

from __future__ import annotations

import torch
from torch import Tensor

INT8_MAX = 127.0


def encode(x: Tensor, element: torch.dtype) -> tuple[Tensor, Tensor | None]:
    """`x` `[..., d]` → stored elements of the same shape and, for int8, float32 scales `[...]`."""
    if element.is_floating_point:
        return x.to(element), None
    wide = x.float()
    scale = wide.abs().amax(dim=-1) / INT8_MAX
    usable = torch.isfinite(scale) & (scale > 0)
    divisor = torch.where(usable, scale, 1.0).unsqueeze(-1)
    stored = torch.where(usable.unsqueeze(-1), torch.round(wide / divisor).clamp_(-INT8_MAX, INT8_MAX), 0.0)
    return stored.to(element), scale


def decode(stored: Tensor, scale: Tensor | None) -> Tensor:
    """Stored elements `[..., d]` and their scales `[...]` → float32."""
    return stored.float() if scale is None else stored.float() * scale.unsqueeze(-1)
