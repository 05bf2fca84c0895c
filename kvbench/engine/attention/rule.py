"""What a layer does to its scores beyond softmax(q · k / √d): families differ in these, the kernels take them as they
come. A window is no part of it: it belongs to the layer's piece of the KV store."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class ScoreRule:
    """`scale` multiplies q · k, None for 1 / √k_dim. `soft_cap` > 0 makes of a score s: cap · tanh(s / cap) (Gemma 2).
    `sinks` float32 `[query_heads]`: a logit per head that enters the denominator of the softmax and nothing else
    (gpt-oss)."""

    scale: float | None = None
    soft_cap: float = 0.0
    sinks: Tensor | None = None

    def scale_for(self, k_dim: int) -> float:
        return float(k_dim**-0.5) if self.scale is None else self.scale

    @property
    def is_plain(self) -> bool:
        """Whether a fused softmax can do it."""
        return self.sinks is None and self.soft_cap == 0.0


PLAIN = ScoreRule()
