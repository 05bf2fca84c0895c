"""The gated MLP, and the gates that families put into it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

if TYPE_CHECKING:
    from kvbench.engine.linear import Linear
    from kvbench.engine.parts import Parts

Gate = Callable[[Tensor, Tensor], Tensor]
"""gate, up → what goes down."""


@dataclass(slots=True)
class GatedMlp:
    """down(gate(x) ⊙ up(x))."""

    gate_up: Linear
    """hidden → 2 · intermediate, gate first"""
    down: Linear
    gate: Gate

    def __call__(self, x: Tensor) -> Tensor:
        """`[T, hidden]` → the same."""
        return self.down(self.gate(*self.gate_up(x).chunk(2, dim=-1)))


def assemble_gated(parts: Parts, prefix: str) -> GatedMlp:
    """From the three matrices under `prefix`."""
    gate_up = parts.linear(f"{prefix}.gate_proj", f"{prefix}.up_proj")
    return GatedMlp(gate_up, parts.linear(f"{prefix}.down_proj"), gate_of(parts.geometry.hidden_act))


def gate_of(hidden_act: str) -> Gate:
    """The gate by its name in `config.json`; which names there are is `engine/families.py`'s."""
    return _gelu_tanh if hidden_act == "gelu_pytorch_tanh" else _silu


def clamped_gate(alpha: float, limit: float) -> Gate:
    """gpt-oss: (up + 1) · gate · σ(α · gate), both sides clamped first."""
    return partial(_clamped, alpha=alpha, limit=limit)


def _silu(gate: Tensor, up: Tensor) -> Tensor:
    return F.silu(gate).mul_(up)


def _gelu_tanh(gate: Tensor, up: Tensor) -> Tensor:
    return F.gelu(gate, approximate="tanh").mul_(up)


def _clamped(gate: Tensor, up: Tensor, *, alpha: float, limit: float) -> Tensor:
    gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return (up + 1) * gate * torch.sigmoid(gate * alpha)
