"""A matrix product with weights kept as the device likes them best."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

_PACKED_FOR_ROWS = 64


class Linear:
    """y = x Wᵀ + b. On a CPU the matrix is kept in oneDNN's own blocked order, which makes products with few rows
    (decode) 1.4–5 times as fast as the row-major matrix; results differ from it in the last bits only."""

    __slots__ = ("_bias", "_is_packed", "_weight")

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self._bias = bias
        self._is_packed = can_pack(weight)
        self._weight = (
            torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), _PACKED_FOR_ROWS)
            if self._is_packed
            else weight.contiguous()
        )

    def __call__(self, x: Tensor) -> Tensor:
        """`[T, in]` → `[T, out]`."""
        if self._is_packed:
            packed: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, "none", [], "")
            return packed
        return F.linear(x, self._weight, self._bias)


def can_pack(weight: Tensor) -> bool:
    """Whether oneDNN takes this matrix: float32 everywhere, bfloat16 where the CPU computes it."""
    if weight.device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    if weight.dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return weight.dtype == torch.float32
