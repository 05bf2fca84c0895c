"""The single layer that a shape of a kernel stands for: its geometry and its bytes. Torch-free."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvbench.geometry.memory import kv_bytes_per_token
from kvbench.geometry.model import GroupKind, LatentShape, LayerGroup, ModelGeometry, single_layer

if TYPE_CHECKING:
    from kvbench_kernels.specs import KernelShape

WINDOW = 100
"""Tokens that a windowed shape sees"""
CAP = 30.0
"""Soft cap of a shape that has one"""


def one_layer(shape: KernelShape) -> ModelGeometry:
    """The geometry of one layer of this shape; one KV head whose V is narrower than its K is a latent layer."""
    is_latent = shape.kv_heads == 1 and shape.v_dim < shape.k_dim
    kind: GroupKind = "latent" if is_latent else "window" if shape.has_window else "full"
    window = WINDOW if shape.has_window and not is_latent else None
    group = LayerGroup(kind, (0,), shape.kv_heads, shape.k_dim, 0 if is_latent else shape.v_dim, window)
    rope = shape.k_dim - shape.v_dim
    latent = LatentShape(None, shape.v_dim, shape.k_dim, rope, shape.v_dim) if is_latent else None
    return single_layer("tuned kernel", "kvbench tune", group, shape.query_heads, shape.context, latent)


def pool_bytes(shape: KernelShape) -> int:
    """Memory of the tokens of all sequences, scales included."""
    return int(shape.batch * shape.context * _token_bytes(shape))


def bytes_per_call(shape: KernelShape) -> int:
    """K, V and their scales of all tokens that are seen, queries in and outputs out in the query's dtype."""
    seen = min(shape.context, WINDOW + shape.query_tokens - 1) if shape.has_window else shape.context
    itemsize = 4 if shape.query_dtype == "fp32" else 2
    rows = shape.batch * shape.query_heads * shape.query_tokens
    return int(shape.batch * seen * _token_bytes(shape)) + rows * (shape.k_dim + shape.v_dim) * itemsize


def _token_bytes(shape: KernelShape) -> float:
    scales = "token-head" if shape.has_block_scales else "tensor-absmax"
    return float(kv_bytes_per_token(one_layer(shape), shape.kv_dtype, scales))
