"""Rotary position embedding: one angle per position and pair of elements, as a table of unit complex numbers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from kvbench.errors import UsageError

if TYPE_CHECKING:
    from kvbench.geometry.model import ModelGeometry

ROPE_TYPES = ("default", "linear", "llama3")
_FIX = "correct config.json, or use another model"
_LLAMA3_KEYS = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")


def inverse_frequencies(geometry: ModelGeometry) -> Tensor:
    """Radians per position of each pair, float32 `[head_dim / 2]`: theta^(-2i/d), then the config's scaling.

    Raises `UsageError` for a scaling type that the engine does not compute, or one with missing numbers.
    """
    if geometry.head_dim % 2:
        raise UsageError(
            f"{geometry.name}: head_dim {geometry.head_dim} is odd; rotary embedding needs pairs", hint=_FIX
        )
    exponents = torch.arange(0, geometry.head_dim, 2, dtype=torch.float32) / geometry.head_dim
    frequencies = 1.0 / geometry.rope_theta**exponents
    scaling = geometry.rope_scaling or {}
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind not in ROPE_TYPES or scaling.get("partial_rotary_factor", 1.0) != 1.0:
        raise UsageError(
            f"{geometry.name}: rotary scaling {scaling} is not supported",
            hint=f"the engine computes rope_type {', '.join(ROPE_TYPES)}, over whole heads",
        )
    if kind == "linear":
        return frequencies / _numbers(geometry.name, scaling, ("factor",))[0]
    return _llama3(frequencies, geometry.name, scaling) if kind == "llama3" else frequencies


def _llama3(frequencies: Tensor, name: str, scaling: dict[str, Any]) -> Tensor:
    """Long wavelengths are stretched by `factor`, short ones kept, those between blended (Llama 3.1 model card)."""
    factor, low, high, trained = _numbers(name, scaling, _LLAMA3_KEYS)
    if not low < high:
        raise UsageError(
            f"{name}: llama3 rotary scaling needs low_freq_factor {low} < high_freq_factor {high}", hint=_FIX
        )
    turns = trained * frequencies / (2 * math.pi)
    kept_share = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    return (1 - kept_share) * frequencies / factor + kept_share * frequencies


def _numbers(name: str, scaling: dict[str, Any], keys: tuple[str, ...]) -> list[float]:
    values = [scaling.get(key) for key in keys]
    for key, value in zip(keys, values, strict=True):
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            raise UsageError(f"{name}: rotary scaling needs a positive number {key!r}, found {value!r}", hint=_FIX)
    return [float(value) for value in values if value is not None]


class RotaryTable:
    """cos + i·sin of every position seen so far; grows by doubling, up to the longest position asked for."""

    def __init__(self, geometry: ModelGeometry, device: torch.device) -> None:
        self._frequencies = inverse_frequencies(geometry).to(device)
        self._table = self._build(256)

    def _build(self, positions: int) -> Tensor:
        angles = torch.arange(positions, device=self._frequencies.device).float()[:, None] * self._frequencies
        return torch.polar(torch.ones_like(angles), angles)

    def at(self, positions: Tensor, longest: int) -> Tensor:
        """Rotations `[T, 1, head_dim / 2]` complex64 of `positions` `[T]`, none of which exceeds `longest`."""
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
    """Rotate `heads` `[T, H, head_dim]` (float32, paired neighbours) in place."""
    torch.view_as_complex(heads.unflatten(-1, (-1, 2))).mul_(rotations)
