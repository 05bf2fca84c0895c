"""Seeded random weights: geometry decides memory and speed, so a benchmark needs no checkpoint."""

from __future__ import annotations

import hashlib
import math

import torch
from torch import Tensor

_QUERY_KEY_GAIN = 2.0
_QUERY_KEY_NAMES = ("q_proj.weight", "k_proj.weight", "q_norm.weight", "k_norm.weight")
_BIAS_REACH = 0.02


class RandomSource:
    """Draws each tensor from its own generator, seeded by (seed, name): neither order, process nor the number of
    threads matters. CPU and CUDA generators give different numbers for the same seed.

    Matrices are uniform with variance 1 / fan-in, so that activations keep unit scale. Queries and keys are twice as
    large: scores with a deviation of 4 make a query pick few tokens, and the greedy output goes on varying. The
    embedding is drawn like a matrix, hence small beside what the layers add: with tied embeddings a token would
    otherwise repeat itself.
    """

    def __init__(self, seed: int, device: torch.device, dtype: torch.dtype) -> None:
        self._seed, self._device, self._dtype = seed, device, dtype

    def __call__(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """The tensor of that name, `shape`, on the device."""
        gain = _QUERY_KEY_GAIN if name.endswith(_QUERY_KEY_NAMES) else 1.0
        if name.endswith("norm.weight"):
            return torch.full(shape, gain, device=self._device)
        reach = _BIAS_REACH if name.endswith("bias") else gain * math.sqrt(3.0 / shape[-1])
        digest = hashlib.sha256(f"{self._seed}:{name}".encode()).digest()
        generator = torch.Generator(self._device).manual_seed(int.from_bytes(digest[:8], "little") >> 1)
        return torch.empty(shape, device=self._device, dtype=self._dtype).uniform_(-reach, reach, generator=generator)
