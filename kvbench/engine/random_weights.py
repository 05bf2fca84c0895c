"""Seeded random weights: geometry decides memory and speed, so a benchmark needs no checkpoint."""

from __future__ import annotations

import hashlib
import math

import torch
from torch import Tensor

_QUERY_KEY_GAIN = 2.0
_QUERY_KEY_NAMES = ("q_proj.weight", "k_proj.weight", "q_b_proj.weight", "q_norm.weight", "k_norm.weight")
_INPUTS_FIRST = ("experts.gate_up_proj", "experts.down_proj")
"""Matrices that are stored inputs × outputs."""
_BIAS_REACH = 0.02


class RandomSource:
    """Draws each tensor from its own generator, seeded by (seed, name): neither order, process nor the number of
    threads matters. CPU and CUDA generators give different numbers for the same seed.

    Matrices are uniform with variance 1 / fan-in, so that activations keep unit scale. Queries and keys are twice as
    large: scores with a deviation of 4 make a query pick few tokens, and the greedy output goes on varying. The
    embedding is drawn like a matrix, hence small beside what the layers add: with tied embeddings a token would
    otherwise repeat itself. Where the model scales it (`embedding_scale`), it is drawn that much smaller, and the
    final norm larger, since the tied head shrinks with it. `norm_offset` is what norms add to their weights.
    """

    def __init__(
        self,
        seed: int,
        device: torch.device,
        dtype: torch.dtype,
        *,
        norm_offset: float = 0.0,
        embedding_scale: float = 1.0,
    ) -> None:
        self._seed, self._device, self._dtype = seed, device, dtype
        self._norm_offset = norm_offset
        self._gains = {"model.embed_tokens.weight": 1 / embedding_scale, "model.norm.weight": embedding_scale}

    def __call__(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """The tensor of that name, `shape`, on the device."""
        gain = self._gains.get(name, _QUERY_KEY_GAIN if name.endswith(_QUERY_KEY_NAMES) else 1.0)
        if name.endswith("norm.weight"):
            return torch.full(shape, gain - self._norm_offset, device=self._device)
        inputs = shape[-2] if name.endswith(_INPUTS_FIRST) else shape[-1]
        reach = _BIAS_REACH if name.endswith("bias") else gain * math.sqrt(3.0 / inputs)
        digest = hashlib.sha256(f"{self._seed}:{name}".encode()).digest()
        generator = torch.Generator(self._device).manual_seed(int.from_bytes(digest[:8], "little") >> 1)
        return torch.empty(shape, device=self._device, dtype=self._dtype).uniform_(-reach, reach, generator=generator)
