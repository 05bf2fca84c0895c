"""The geometry that a `kernel` case times: one layer, nothing else; and how often it is there. Torch-free."""

from __future__ import annotations

from kvbench.geometry.model import LayerGroup, ModelGeometry, single_layer
from kvbench.spec.suite import KernelSettings

SETS = 3
"""Copies of blocks and queries that flushed calls rotate over."""


def buffer_sets(kernel: KernelSettings) -> int:
    """How many copies of everything that a call reads there are."""
    return SETS if kernel.buffers == "l2-flushed" else 1


def query_dtype(kernel: KernelSettings, device: str) -> str:
    """What the queries are on a kind of device: on a GPU bf16, as a model's are, but float32 beside float32 KV; on a
    CPU float32."""
    return "bf16" if device == "cuda" and kernel.kv_dtype != "fp32" else "fp32"


def one_layer(kernel: KernelSettings) -> ModelGeometry:
    """A geometry of one full-attention layer with the case's heads."""
    group = LayerGroup("full", (0,), kernel.kv_heads, kernel.head_dim, kernel.head_dim)
    return single_layer("kernel", "kernel case", group, kernel.query_heads, kernel.context)
