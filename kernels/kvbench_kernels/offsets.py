"""Where K, V and scales of a token lie in one layer's pool: the numbers every kernel takes. No torch here."""

from __future__ import annotations

from typing import NamedTuple

from kvbench_kernels.specs import KernelShape

BYTES = {"fp32": 4, "fp16": 2, "bf16": 2, "fp8_e4m3": 1, "fp8_e5m2": 1, "int8": 1}
"""Of one stored element, by the store's names."""
_ALIGNMENT, _SCALE_BYTES = 16, 4


class Offsets(NamedTuple):
    """In the kernels' order of arguments. `block_elements` leads to the next block, V starts at `v_base` and has rows
    of `v_stride`, all in stored elements; `block_scales` and the bases of scales count float32 from the same start. The
    row of head h at place p is number h · head_rows + p · token_rows, in K, V and both scales."""

    block_size: int
    block_elements: int
    v_base: int
    v_stride: int
    block_scales: int
    k_scale_base: int
    v_scale_base: int
    head_rows: int
    token_rows: int

    @property
    def without_v_stride(self) -> tuple[int, int, int, int, int, int, int, int]:
        """As append and gather take them, which step through V by its own width."""
        return (*self[:3], *self[4:])


def block_offsets(shape: KernelShape, *, is_latent: bool = False) -> Offsets:
    """Of a pool that holds this layer alone: K `[kv_heads, block_size, k_dim]`, V likewise, then scales of K and of V;
    heads and tokens change places in `nhd`. Blocks start on multiples of 16 bytes. A latent layer is one KV head
    without a V of its own."""
    size, tokens = BYTES[shape.kv_dtype], shape.kv_heads * shape.block_size
    elements = tokens * (shape.k_dim + (0 if is_latent else shape.v_dim))
    first_scale = -(-elements * size // _SCALE_BYTES)
    scales = (1 if is_latent else 2) * tokens if shape.has_block_scales else 0
    block_bytes = -(-(elements * size + scales * _SCALE_BYTES) // _ALIGNMENT) * _ALIGNMENT
    return Offsets(
        block_size=shape.block_size,
        block_elements=block_bytes // size,
        v_base=0 if is_latent else tokens * shape.k_dim,
        v_stride=shape.k_dim if is_latent else shape.v_dim,
        block_scales=block_bytes // _SCALE_BYTES,
        k_scale_base=first_scale,
        v_scale_base=first_scale if is_latent else first_scale + tokens,
        head_rows=shape.block_size if shape.layout == "hnd" else 1,
        token_rows=1 if shape.layout == "hnd" else shape.kv_heads,
    )
