"""What `auto` stands for in the engine's settings, by the kind of device (`rocm`: under the virtual clock only).
Torch-free, so that a plan can say it."""

from __future__ import annotations

import os
from importlib.util import find_spec

WEIGHT_DTYPE = {"cpu": "fp32", "cuda": "bf16", "rocm": "bf16"}
"""Dtype of weights and activations."""

_TRUE = ("1", "true", "yes", "on", "y")
"""What Triton takes for a switch that is on."""


def automatic_attention(kind: str) -> str:
    """Attention backend: numba on a CPU, Triton on CUDA where it is installed, else torch."""
    if kind == "cpu":
        return "numba"
    return "triton" if kind == "cuda" and why_not_triton(kind) is None else "torch"


def why_not_triton(kind: str) -> str | None:
    """Why the Triton kernels cannot run on this kind of device; None when they can."""
    if find_spec("triton") is None:
        return "the triton package is not installed"
    if kind == "cpu" and os.environ.get("TRITON_INTERPRET", "").lower() not in _TRUE:
        return "on a CPU the Triton kernels run in Triton's interpreter only, which TRITON_INTERPRET=1 switches on"
    return None if kind in ("cpu", "cuda") else f"the Triton kernels are not built for {kind}"
