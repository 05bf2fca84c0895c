"""The pool that all layers share, and the typed views of it that reading and writing need."""

from __future__ import annotations

import mmap
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from kvbench.engine.kvstore.layout import BlockLayout, StoredForm, block_layout
from kvbench.geometry.memory import pool_layout

if TYPE_CHECKING:
    from torch import Tensor

    from kvbench.engine.kvstore.scales import TensorScales
    from kvbench.geometry.model import ModelGeometry

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
    `[num_blocks + 1, kv_heads, block_size]`, whatever their order in memory; `elements` and `scales` are that memory
    as 1-D tensors, `flat` and `flat_scales` as 1-D numpy arrays (CPU). A latent layer's `v` is a part of its `k`, with
    K's scales. Elements were divided by `k_tensor_scale` and `v_tensor_scale`, None for none, before they were
    stored."""

    layout: BlockLayout
    k: Tensor
    v: Tensor
    k_scale: Tensor | None
    v_scale: Tensor | None
    elements: Tensor
    scales: Tensor | None
    flat: np.ndarray[Any, Any] | None
    flat_scales: np.ndarray[Any, Any] | None
    k_tensor_scale: float | None = None
    v_tensor_scale: float | None = None


class BlockPool:
    """uint8 `[layers per block, num_blocks + 1, bytes of the widest layer]`; block 0 is the null block.

    One for all pieces of a model's `pool_layout`: a physical block serves whichever piece takes it, layer j of the
    piece in plane j. `layers` are the model's, in its own order; `piece_of_layer` says whose block table names their
    blocks.
    """

    def __init__(
        self,
        geometry: ModelGeometry,
        form: StoredForm,
        num_blocks: int,
        device: torch.device,
        tensor_scales: TensorScales | None = None,
        memory: Tensor | None = None,
    ) -> None:
        """Over `memory`, where it is given, as it stands."""
        pool = pool_layout(geometry, form.kv_dtype, form.block_size, form.kv_scales)
        row_bytes = pool.block_bytes // pool.layers_per_block
        latent_rank = geometry.latent.kv_lora_rank if geometry.latent else 0
        layouts = [block_layout(piece.group, form, row_bytes, latent_rank) for piece in pool.pieces]
        size = (num_blocks + 1) * row_bytes
        self.memory = allocate((pool.layers_per_block, size), device) if memory is None else memory
        """`[layers per block, bytes]`"""
        self.bytes = self.memory[:, :size].unflatten(1, (num_blocks + 1, row_bytes))
        views: dict[int, tuple[int, LayerView]] = {}
        for index, (piece, layout) in enumerate(zip(pool.pieces, layouts, strict=True)):
            for plane, layer in enumerate(piece.layer_ids):
                scales = None if tensor_scales is None else (tensor_scales.k[layer], tensor_scales.v[layer])
                views[layer] = index, _layer_view(layout, self.bytes[plane], scales)
        self.pieces = pool.pieces
        self.piece_of_layer = [views[layer][0] for layer in range(geometry.num_layers)]
        self.layers = [views[layer][1] for layer in range(geometry.num_layers)]


def allocate(shape: tuple[int, ...], device: torch.device) -> Tensor:
    """Zeroed bytes; on a CPU in huge pages where the system grants them, since block tables jump about in the pool."""
    size = int(np.prod(shape))
    if device.type != "cpu" or size == 0 or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.zeros(shape, dtype=torch.uint8, device=device)
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a kernel built without huge pages
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.from_numpy(np.frombuffer(memory, dtype=np.uint8)).view(shape)


def _layer_view(layout: BlockLayout, layer: Tensor, tensor_scales: tuple[float, float] | None) -> LayerView:
    elements = layer.view(layout.element)
    scales = layer.view(torch.float32) if layout.has_scales else None
    k_tensor_scale, v_tensor_scale = tensor_scales or (None, None)
    on_cpu = layer.device.type == "cpu"
    flat, at = layer.view(-1).numpy() if on_cpu else None, layout.offsets
    k = _part(layout, elements, 0, layout.k_dim)
    return LayerView(
        layout=layout,
        k=k,
        v=k[..., : layout.v_dim] if layout.is_latent else _part(layout, elements, at.v_base, layout.v_dim),
        k_scale=None if scales is None else _part(layout, scales, at.k_scale_base, 1).squeeze(-1),
        v_scale=None if scales is None else _part(layout, scales, at.v_scale_base, 1).squeeze(-1),
        elements=elements.view(-1),
        scales=None if scales is None else scales.view(-1),
        flat=None if flat is None else flat.view(_BIT_FORMS[layout.element]),
        flat_scales=None if flat is None or scales is None else flat.view(np.float32),
        k_tensor_scale=k_tensor_scale,
        v_tensor_scale=k_tensor_scale if layout.is_latent else v_tensor_scale,
    )


def _part(layout: BlockLayout, blocks: Tensor, base: int, size: int) -> Tensor:
    """`[blocks, kv_heads, block_size, size]` of the elements from `base` on."""
    heads, tokens = layout.kv_heads, layout.block_size
    part = blocks[:, base : base + heads * tokens * size]
    if layout.offsets.token_rows == 1:
        return part.unflatten(1, (heads, tokens, size))
    return part.unflatten(1, (tokens, heads, size)).transpose(1, 2)
