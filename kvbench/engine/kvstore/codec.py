"""Stored forms of K and V in plain torch: the reference of the kernels, and the path on CUDA.

Wide forms round to nearest even. The narrow ones, int8 and fp8 (OCP e4m3 and e5m2), are symmetric and scaled:
q = round(x / s) with s = max |x| / m over the elements of one token and head, m the largest number of the form, so that
±m is used and int8's −128 never. A row whose s is 0 or not finite is stored as zeros; a row with an infinity or a NaN
keeps that as its scale and reads back as NaN.

With one scale s of the whole tensor, given beforehand, what is finite and beyond ±m · s saturates there, whatever
torch's own cast does (to e4m3 it has given NaN and has given m). Then fp8 keeps a NaN; an infinity becomes e4m3's NaN,
for it has none, and e5m2's infinity. int8 has no such numbers: a NaN is stored as 0, an infinity saturates.
"""

from __future__ import annotations

import torch
from torch import Tensor

LARGEST: dict[torch.dtype, float] = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0, torch.float8_e5m2: 57344.0}
"""The largest number of each narrow form."""


def encode(x: Tensor, element: torch.dtype, tensor_scale: float | None = None) -> tuple[Tensor, Tensor | None]:
    """`x` `[..., d]` → stored elements of the same shape and, for narrow forms without a scale of the tensor, float32
    scales `[...]`."""
    if element not in LARGEST:
        return x.to(element), None
    if tensor_scale is not None:
        return _narrow(divided(x, tensor_scale), element), None
    wide = x.float()
    scale = wide.abs().amax(dim=-1) / LARGEST[element]
    usable = torch.isfinite(scale) & (scale > 0)
    divisor = torch.where(usable, scale, 1.0).unsqueeze(-1)
    return _narrow(torch.where(usable.unsqueeze(-1), wide / divisor, 0.0), element), scale


def decode(stored: Tensor, scale: Tensor | None, tensor_scale: float | None = None) -> Tensor:
    """Stored elements `[..., d]` and their scales `[...]`, or that of the tensor → float32."""
    wide = stored.float() if scale is None else stored.float() * scale.unsqueeze(-1)
    return wide if tensor_scale is None else wide * tensor_scale


def divided(x: Tensor, tensor_scale: float | None) -> Tensor:
    """float32 `x / tensor_scale`; None divides by nothing."""
    return x.float() if tensor_scale is None else x.float() / torch.tensor(tensor_scale, device=x.device)


def _narrow(x: Tensor, element: torch.dtype) -> Tensor:
    """Rounded to the nearest number of the form, ties to even; saturating."""
    most = LARGEST[element]
    if not element.is_floating_point:
        return torch.nan_to_num(torch.round(x).clamp_(-most, most), nan=0.0).to(element)
    finite = x.clamp(-most, most).to(element)
    beyond = float("nan") if element == torch.float8_e4m3fn else float("inf")
    return torch.where(torch.isinf(x), torch.copysign(torch.full_like(x, beyond), x).to(element), finite)
