"""Static scales of a narrow KV dtype: one per layer for K and one for V, beside the pool. Torch-free."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class TensorScales:
    """What the elements of layer i were divided by before they were stored: float32 numbers above 0. `tokens` and
    `method` say how they were found."""

    k: tuple[float, ...]
    v: tuple[float, ...]
    method: str = "given"
    tokens: int = 0

    @property
    def digest(self) -> str:
        """16 hex digits; KV stored under other scales is other KV."""
        return hashlib.sha256(np.array([self.k, self.v], dtype="<f4").tobytes()).hexdigest()[:16]
