"""Seeded random weights: geometry decides memory and speed, so a benchmark needs no checkpoint."""

from __future__ import annotations

import hashlib
import math

import torch
from torch import Tensor


class RandomSource:
    """Draws each tensor from its own generator, seeded by (seed, name): neither order, process nor the number of
    threads matters.

    Matrices are uniform with variance 1 / fan-in, so that activations keep unit scale. The embedding is drawn like a
    matrix, hence small beside what the layers add: with tied embeddings a token would otherwise only repeat itself.
    CPU and CUDA generators give different numbers for the same seed.
    """

    def __init__(self, seed: int, device: torch.device, dtype: torch.dtype) -> None:
        self._seed, self._device, self._dtype = seed, device, dtype

    def __call__(self, name: str, shape: tuple[int, ...]) -> Tensor:
        if name.endswith("norm.weight"):
            return torch.ones(shape, device=self._device)
        digest = hashlib.sha256(f"{self._seed}:{name}".encode()).digest()
        generator = torch.Generator(self._device).manual_seed(int.from_bytes(digest[:8], "little") >> 1)
        reach = 0.02 if name.endswith("bias") else math.sqrt(3.0 / shape[-1])
        return torch.empty(shape, device=self._device, dtype=self._dtype).uniform_(-reach, reach, generator=generator)
