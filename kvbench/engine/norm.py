"""RMS norm: x · w / √(mean(x²) + ε), in float32."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor


class RmsNorm:
    """Over the last axis; `weight` has the shape of the last one or two axes.

    On a CPU torch runs its own `rms_norm` as nine operations. With √n moved into the weight,
    x / √(|x|² + nε) · (w√n) takes four, which halves the time of a decode step's norms.
    """

    __slots__ = ("_eps", "_floor", "_scaled", "_width", "weight")

    def __init__(self, weight: Tensor, eps: float) -> None:
        self.weight = weight
        self._width, self._eps = weight.shape[-1], eps
        self._scaled = weight * math.sqrt(self._width)
        self._floor = torch.tensor(math.sqrt(self._width * eps), device=weight.device)

    def __call__(self, x: Tensor) -> Tensor:
        """float32 `[…, n]` → the same shape."""
        if x.device.type != "cpu":
            return F.rms_norm(x, (self._width,), None, self._eps) * self.weight
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True).hypot_(self._floor)
        return (x / length).mul_(self._scaled)
