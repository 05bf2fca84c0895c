"""How far a model's next-token distributions are from those it should have: KL divergence, likelihood, top-1.

    KL(p ‖ q) = Σ p_i (log p_i − log q_i)      in nats; p the reference, q what is judged
    nll       = −log q_target                  perplexity is exp of its mean

Arithmetic is float64 over float32 logits; equal logits have a divergence of exactly 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class TokenNumbers:
    """Of every predicted token, arrays of one shape: KL from the reference in nats, −log of the probability that the
    judged distribution gives the token that came, and whether both have the same likeliest token."""

    kl_nats: Floats
    nll_nats: Floats
    is_same_top1: NDArray[np.bool_]

    @property
    def is_finite(self) -> bool:
        return bool(np.isfinite(self.kl_nats).all() and np.isfinite(self.nll_nats).all())


class Reference:
    """What the distributions of some rows should be; `targets` `[rows]` are the tokens that came."""

    def __init__(self, logits: NDArray[Any], targets: NDArray[np.int64]) -> None:
        self._log_p = log_probabilities(logits)
        self._p = np.exp(self._log_p)
        self._top1 = logits.argmax(axis=-1)
        self._targets = targets

    def judge(self, logits: NDArray[Any]) -> TokenNumbers:
        """Numbers `[rows]` of other logits `[rows, vocab]` for the same rows; NaN where they are no numbers."""
        log_q = log_probabilities(logits)
        targets = -np.take_along_axis(log_q, self._targets[:, np.newaxis], axis=-1)[:, 0]
        np.subtract(self._log_p, log_q, out=log_q)
        kl = np.einsum("rv,rv->r", self._p, log_q)
        # Rounding can leave −1e-17 of a divergence that is 0 or nearly so.
        return TokenNumbers(np.maximum(kl, 0.0), targets, logits.argmax(axis=-1) == self._top1)


def log_probabilities(logits: NDArray[Any]) -> Floats:
    """log softmax over the last axis, float64; NaN for a row with a NaN or +∞."""
    with np.errstate(invalid="ignore", over="ignore"):
        wide = logits.astype(np.float64)
        wide -= wide.max(axis=-1, keepdims=True)
        wide -= np.log(np.exp(wide).sum(axis=-1, keepdims=True))
    return wide
