"""Write tokens into slots and gather sequences back: by torch operations anywhere, by numba on a CPU.

Both store the same bits (tested); torch is the reference.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import torch

from kvbench.engine.kvstore.codec import decode, divided, encode
from kvbench.errors import InternalError

if TYPE_CHECKING:
    from torch import Tensor

    from kvbench.engine.kvstore.pool import LayerView


class BlockIO(Protocol):
    """How tokens get into blocks and out of them."""

    def write(self, view: LayerView, k: Tensor, v: Tensor, slots: Tensor) -> None:
        """Store K and V `[T, kv_heads, d]` at flat slots `[T]` int64; a latent layer's V has d = 0."""
        ...

    def gather(self, view: LayerView, table: Tensor, start: int, end: int) -> tuple[Tensor, Tensor]:
        """float32 K and V `[kv_heads, end − start, d]` of tokens [start, end) of a block table `[n]`."""
        ...


class TorchIO:
    """The readable form."""

    def write(self, view: LayerView, k: Tensor, v: Tensor, slots: Tensor) -> None:
        size = view.layout.block_size
        block = torch.div(slots, size, rounding_mode="floor")
        place = slots - block * size
        parts = ((k, view.k, view.k_scale, view.k_tensor_scale), (v, view.v, view.v_scale, view.v_tensor_scale))
        for x, stored, scales, tensor_scale in parts[:1] if view.layout.is_latent else parts:
            elements, scale = encode(x, view.layout.element, tensor_scale)
            stored[block, :, place] = elements
            if scales is not None and scale is not None:
                scales[block, :, place] = scale

    def gather(self, view: LayerView, table: Tensor, start: int, end: int) -> tuple[Tensor, Tensor]:
        size = view.layout.block_size
        blocks = table[start // size : -(-end // size)].long()
        tokens = slice(start % size, start % size + end - start)
        return (
            _joined(view.k, view.k_scale, view.k_tensor_scale, blocks, tokens),
            _joined(view.v, view.v_scale, view.v_tensor_scale, blocks, tokens),
        )


def _joined(stored: Tensor, scales: Tensor | None, tensor_scale: float | None, blocks: Tensor, tokens: slice) -> Tensor:
    """Blocks one after the other, head by head."""
    elements = stored[blocks].contiguous().transpose(0, 1).flatten(1, 2)[:, tokens]
    scale = None if scales is None else scales[blocks].transpose(0, 1).flatten(1, 2)[:, tokens]
    return decode(elements, scale, tensor_scale)


class NumbaIO:
    """The CPU's own kernels; imports numba, so make it only when it is used."""

    def __init__(self) -> None:
        from kvbench_kernels import gather_numba, runtime, write_numba

        self._write, self._gather, self._parts = write_numba.write, gather_numba.gather, runtime.parts

    def write(self, view: LayerView, k: Tensor, v: Tensor, slots: Tensor) -> None:
        layout = view.layout
        bad = self._write(
            divided(k, view.k_tensor_scale).contiguous().numpy(),
            divided(v, view.v_tensor_scale).contiguous().numpy(),
            view.flat,
            view.flat_scales,
            slots.contiguous().numpy(),
            *layout.offsets.without_v_stride,
            self._parts(k.numel() + v.numel()),
        )
        if bad >= 0:
            raise InternalError(f"slot {int(slots[bad])} of token {bad} is outside the pool or in the null block")

    def gather(self, view: LayerView, table: Tensor, start: int, end: int) -> tuple[Tensor, Tensor]:
        layout = view.layout
        k = torch.empty((layout.kv_heads, end - start, layout.k_dim))
        v = torch.empty((layout.kv_heads, end - start, 0 if layout.is_latent else layout.v_dim))
        self._gather(
            view.flat,
            view.flat_scales,
            table.contiguous().numpy(),
            start,
            k.numpy(),
            v.numpy(),
            *layout.offsets.without_v_stride,
            self._parts(k.numel() + v.numel()),
        )
        for x, tensor_scale in ((k, view.k_tensor_scale), (v, view.v_tensor_scale)):
            if tensor_scale is not None:
                x *= tensor_scale
        return k, k[..., : layout.v_dim] if layout.is_latent else v
