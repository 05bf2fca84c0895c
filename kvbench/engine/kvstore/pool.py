"""The pool of one layer group, and the typed views of it that reading and writing need."""

from __future__ import annotations

import mmap
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from kvbench.engine.kvstore.layout import BlockLayout, block_layout

if TYPE_CHECKING:
    from torch import Tensor

    from kvbench.geometry.model import LayerGroup

_BIT_FORMS: dict[torch.dtype, Any] = {
    torch.float32: np.float32,
    torch.bfloat16: np.uint16,
    torch.float16: np.int16,
    torch.int8: np.int8,
    torch.float8_e4m3fn: np.uint8,
    torch.float8_e5m2: np.bool_,
}
"""How the numba kernels see each stored dtype."""


@dataclass(frozen=True, slots=True)
class LayerView:
    """One layer's blocks. `k` and `v` are `[num_blocks + 1, kv_heads, block_size, d]` in the stored dtype, the scales
    `[num_blocks + 1, kv_heads, block_size]`; `flat` and `flat_scales` are the same memory as 1-D numpy arrays (CPU)."""

    layout: BlockLayout
    k: Tensor
    v: Tensor
    k_scale: Tensor | None
    v_scale: Tensor | None
    flat: np.ndarray[Any, Any] | None
    flat_scales: np.ndarray[Any, Any] | None


class GroupPool:
    """uint8 `[layers, num_blocks + 1, layer_block_bytes]`; block 0 is the null block."""

    def __init__(
        self, group: LayerGroup, kv_dtype: str, block_size: int, num_blocks: int, device: torch.device
    ) -> None:
        self.layout = block_layout(group, kv_dtype, block_size)
        self.bytes = allocate((len(group.layers), num_blocks + 1, self.layout.block_bytes), device)
        self.layers = [_layer_view(self.layout, layer) for layer in self.bytes]


def allocate(shape: tuple[int, ...], device: torch.device) -> Tensor:
    """Zeroed bytes; on a CPU in huge pages where the system grants them, since block tables jump about in the pool."""
    size = int(np.prod(shape))
    if device.type != "cpu" or size == 0 or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.zeros(shape, dtype=torch.uint8, device=device)
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a kernel built without huge pages
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.from_numpy(np.frombuffer(memory, dtype=np.uint8)).view(shape)


def _layer_view(layout: BlockLayout, layer: Tensor) -> LayerView:
    elements = layer.view(layout.element)
    scales = layer.view(torch.float32) if layout.is_quantised else None
    on_cpu = layer.device.type == "cpu"
    flat = layer.view(-1).numpy() if on_cpu else None
    return LayerView(
        layout=layout,
        k=_part(layout, elements, 0, layout.k_dim),
        v=_part(layout, elements, layout.v_base, layout.v_dim),
        k_scale=None if scales is None else _part(layout, scales, layout.k_scale_base, 1).squeeze(-1),
        v_scale=None if scales is None else _part(layout, scales, layout.v_scale_base, 1).squeeze(-1),
        flat=None if flat is None else flat.view(_BIT_FORMS[layout.element]),
        flat_scales=None if flat is None or scales is None else flat.view(np.float32),
    )


def _part(layout: BlockLayout, blocks: Tensor, base: int, size: int) -> Tensor:
    """`[blocks, kv_heads, block_size, size]` of the elements from `base` on."""
    heads, tokens = layout.kv_heads, layout.block_size
    end = base + heads * tokens * size
    return blocks[:, base:end].unflatten(1, (heads, tokens, size))
