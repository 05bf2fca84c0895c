"""Where K, V and scales of one token lie in a layer's plane of the pool.

The block's size in bytes is `geometry.memory.layer_block_bytes`, the one source of that arithmetic; this file adds the
offsets within it: K `[kv_heads, block_size, k_dim]`, V `[kv_heads, block_size, v_dim]`, float32 scales of K
`[kv_heads, block_size]`, then of V. That is `hnd`; in `nhd` heads and tokens change places in all four.
Scales start on the next multiple of 4 bytes, which the rounding of the block to 16
bytes always has room for: scales take 8 · kv_heads · block_size bytes, so the slack is a multiple of 4 from there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from kvbench.errors import InternalError, UsageError
from kvbench.geometry.dtypes import canonical_dtype, scales_per_token, storage_dtype
from kvbench.geometry.memory import layer_block_bytes
from kvbench_kernels.offsets import Offsets

if TYPE_CHECKING:
    from kvbench.geometry.model import LayerGroup

ELEMENTS: dict[str, torch.dtype] = {
    "fp32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "fp8_e4m3": torch.float8_e4m3fn,
    "fp8_e5m2": torch.float8_e5m2,
    "int8": torch.int8,
}
LAYOUTS = ("hnd", "nhd")
"""Whether a block holds its tokens head by head, or the heads of one token side by side."""
_SCALE_BYTES = 4


@dataclass(frozen=True, slots=True)
class BlockLayout:
    """What one block of one layer holds, and where: `offsets` are in the kernels' order and units. In a pool of unequal
    layers a narrow one uses the first `block_bytes` of its row; a latent layer's V is part of its K."""

    kv_dtype: str
    kv_heads: int
    k_dim: int
    v_dim: int
    is_latent: bool
    block_bytes: int
    has_scales: bool
    offsets: Offsets

    @property
    def block_size(self) -> int:
        """Tokens."""
        return self.offsets.block_size

    @property
    def element(self) -> torch.dtype:
        return ELEMENTS[self.kv_dtype]


@dataclass(frozen=True, slots=True)
class StoredForm:
    """How K and V are stored; the geometry says how much of them there is. `UsageError` for what cannot be stored."""

    kv_dtype: str
    block_size: int
    kv_scales: str = "token-head"
    kv_layout: str = "hnd"

    def __post_init__(self) -> None:
        if canonical_dtype(self.kv_dtype) not in ELEMENTS:
            raise UsageError(f"KV dtype {self.kv_dtype!r} cannot be stored", hint=f"one of {', '.join(ELEMENTS)}")
        if self.kv_layout not in LAYOUTS:
            raise UsageError(f"unknown KV layout {self.kv_layout!r}", hint=f"one of {', '.join(LAYOUTS)}")
        scales_per_token(self.kv_scales)


def block_layout(
    group: LayerGroup, form: StoredForm, row_bytes: int | None = None, latent_rank: int = 0
) -> BlockLayout:
    """The layout of one layer group, in a pool whose rows have `row_bytes` (its own, unless given). `latent_rank` is
    the part of a latent row that reads as V."""
    name, block_size = canonical_dtype(form.kv_dtype), form.block_size
    itemsize = ELEMENTS[name].itemsize
    block_bytes = layer_block_bytes(group, name, block_size, form.kv_scales)
    row_bytes = row_bytes or block_bytes
    is_latent = group.kind == "latent"
    tokens = group.kv_heads * block_size
    elements = tokens * (group.k_head_dim + group.v_head_dim)
    first_scale = -(-elements * itemsize // _SCALE_BYTES)
    has_scales = storage_dtype(name).scale_bytes > 0 and scales_per_token(form.kv_scales)
    if has_scales and (first_scale + (1 if is_latent else 2) * tokens) * _SCALE_BYTES > block_bytes:
        raise InternalError(f"a block of {block_bytes} bytes has no room for its scales")
    offsets = Offsets(
        block_size=block_size,
        block_elements=row_bytes // itemsize,
        v_base=0 if is_latent else tokens * group.k_head_dim,
        v_stride=group.k_head_dim if is_latent else group.v_head_dim,
        block_scales=row_bytes // _SCALE_BYTES,
        k_scale_base=first_scale,
        v_scale_base=first_scale if is_latent else first_scale + tokens,
        head_rows=block_size if form.kv_layout == "hnd" else 1,
        token_rows=1 if form.kv_layout == "hnd" else group.kv_heads,
    )
    v_dim = latent_rank if is_latent else group.v_head_dim
    return BlockLayout(name, group.kv_heads, group.k_head_dim, v_dim, is_latent, block_bytes, has_scales, offsets)
