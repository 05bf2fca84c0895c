"""Rotary position embedding: one angle per position and pair of elements, as a table of complex numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from kvbench.engine.rope_scaling import FIX, latent_gain, length_factor, scaled
from kvbench.errors import UsageError

if TYPE_CHECKING:
    from kvbench.geometry.model import ModelGeometry


def inverse_frequencies(geometry: ModelGeometry, *, is_local: bool = False) -> Tensor:
    """Radians per position of each pair, float32 `[rotary dim / 2]`: theta^(-2i/d), then the config's scaling.

    `is_local`: those of window layers with a base of their own, which no scaling touches.
    Raises `UsageError` for a scaling type that the engine does not compute, or one with missing numbers.
    """
    size = geometry.head_dim if geometry.latent is None else geometry.latent.qk_rope_head_dim
    if size % 2:
        raise UsageError(f"{geometry.name}: head_dim {size} is odd; rotary embedding needs pairs", hint=FIX)
    theta = geometry.rope_theta
    if is_local and geometry.rope_local_theta is not None:
        theta = geometry.rope_local_theta
    frequencies = 1.0 / theta ** (torch.arange(0, size, 2, dtype=torch.float32) / size)
    return frequencies if is_local else scaled(frequencies, geometry)


def check_rotary(geometry: ModelGeometry) -> None:
    """`UsageError` for a rotary embedding that the engine does not compute, by all that a model will ask of it."""
    inverse_frequencies(geometry)
    length_factor(geometry)
    latent_gain(geometry)


class RotaryTable:
    """length · (cos + i·sin) of every position seen so far; grows by doubling, up to the longest position asked for.
    The length is 1 except under yarn."""

    def __init__(self, geometry: ModelGeometry, device: torch.device, *, is_local: bool = False) -> None:
        self._frequencies = inverse_frequencies(geometry, is_local=is_local).to(device)
        self._length = 1.0 if is_local else length_factor(geometry)
        self._table = self._build(256)

    def _build(self, positions: int) -> Tensor:
        angles = torch.arange(positions, device=self._frequencies.device).float()[:, None] * self._frequencies
        return torch.polar(torch.full_like(angles, self._length), angles)

    def at(self, positions: Tensor, longest: int) -> Tensor:
        """Rotations `[T, 1, rotary dim / 2]` complex64 of `positions` `[T]`, none of which exceeds `longest`."""
        if longest >= len(self._table):
            self._table = self._build(1 << longest.bit_length())
        return self._table[positions].unsqueeze(1)


def pair_neighbours(weight: Tensor, head_dim: int) -> Tensor:
    """Rows of a Q or K projection (or its bias, or a per-head norm) reordered so that rotary pairs are neighbours.

    Checkpoints pair element i with i + d/2. With i and i + 1 paired instead, a head is an array of complex numbers and
    rotating is one multiplication. Q and K are reordered alike, so their dot products stay as they were.
    """
    halves = weight.unflatten(0, (-1, 2, head_dim // 2))
    return halves.transpose(1, 2).flatten(0, 2)


def rotate_(heads: Tensor, rotations: Tensor) -> None:
    """Rotate `heads` `[T, H, rotary dim]` (float32, paired neighbours) in place."""
    torch.view_as_complex(heads.unflatten(-1, (-1, 2))).mul_(rotations)
