"""The KV tensors of one engine: allocate, write, gather, move.

Sizes come from `geometry.memory`; which block holds what is the cache manager's business. The store knows slots
(block · block_size + place) and physical blocks only, never sequences or keys.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import torch

from kvbench.engine.kvstore.block_copies import TritonCopies, copy_blocks
from kvbench.engine.kvstore.layout import StoredForm
from kvbench.engine.kvstore.pool import BlockPool, allocate
from kvbench.engine.kvstore.reading_writing import BlockIO, NumbaIO, TorchIO
from kvbench.engine.kvstore.reblock import put_units, take_units
from kvbench.engine.kvstore.transfer import BlockMover
from kvbench.engine.kvstore.triton_io import TritonIO
from kvbench.engine.reblocking import BlockSizes, Reblocked
from kvbench.errors import CannotRunError, InternalError
from kvbench.geometry.dtypes import canonical_dtype
from kvbench.geometry.memory import pool_layout

if TYPE_CHECKING:
    from torch import Tensor

    from kvbench.cache.reblock import ReblockPlan
    from kvbench.cache.transfers import Transfers
    from kvbench.engine.copies import Outcome
    from kvbench.engine.kvstore.disk import DiskFiles
    from kvbench.engine.kvstore.scales import TensorScales
    from kvbench.geometry.model import ModelGeometry

_T = TypeVar("_T")


class KVStore:
    """K and V of all layers in `num_blocks` usable blocks of `block_size` tokens, `host_blocks` and `swap_blocks` in
    host memory, and `disk_blocks` in files. `overlaps`: promotions go on in the background.

    With `tensor_scales` a narrow KV dtype has these and none in its blocks. `kv_layout` is hnd or nhd, see
    `kvstore/layout.py`. `uses_triton`: the Triton kernels write and copy, else numba on a CPU and torch on CUDA.
    `CannotRunError` when the memory cannot be had.
    """

    def __init__(
        self,
        geometry: ModelGeometry,
        kv_dtype: str,
        block_size: int,
        num_blocks: int,
        *,
        host_blocks: int = 0,
        swap_blocks: int = 0,
        disk: DiskFiles | None = None,
        disk_blocks: int = 0,
        overlaps: bool = False,
        device: str | torch.device = "cpu",
        kv_layout: str = "hnd",
        tensor_scales: TensorScales | None = None,
        uses_triton: bool = False,
    ) -> None:
        self.form = StoredForm(kv_dtype, block_size, _kind_of_scales(tensor_scales), kv_layout)
        self.tensor_scales = tensor_scales
        self.geometry, self.kv_dtype = geometry, canonical_dtype(kv_dtype)
        self.block_size, self.num_blocks, self.host_blocks = block_size, num_blocks, host_blocks
        self._swap_blocks = swap_blocks
        self.device = torch.device(device)
        self.pool = _allocated(
            lambda: BlockPool(geometry, self.form, num_blocks, self.device, tensor_scales),
            f"{num_blocks} KV blocks on {device}",
        )
        self._plane_bytes = self.pool.bytes[0].numel()
        self._kv_bytes = num_blocks * self.block_bytes
        self.hosts = _allocated(self._host_tier, f"{host_blocks + swap_blocks} KV blocks in host memory")
        self._io = _block_io(self.device, uses_triton)
        self._new_mover = partial(
            BlockMover,
            hosts=self.hosts,
            host_blocks=host_blocks,
            swap_blocks=swap_blocks,
            disk=disk,
            disk_blocks=disk_blocks,
            overlaps=overlaps,
            copies=TritonCopies() if uses_triton else copy_blocks,
        )
        self._use(self.pool)

    @property
    def block_bytes(self) -> int:
        """One physical block over its layers."""
        return int(self.pool.bytes.shape[0] * self.pool.bytes.shape[2])

    def write(self, layer: int, k: Tensor, v: Tensor, slots: Tensor) -> None:
        """Quantise and store K and V `[T, kv_heads, d]` at slots `[T]` int64 (block · block_size + place). A latent
        layer has no V of its own: d = 0."""
        self._io.write(self.layers[layer], k, v, slots)

    def gather(self, layer: int, block_table: Tensor, length: int, start: int = 0) -> tuple[Tensor, Tensor]:
        """float32 K and V `[kv_heads, length − start, d]` as they are stored, of tokens [start, length) of an int32
        block table `[n]`. Entries before the block of `start` are not looked at."""
        if length > len(block_table) * self.block_size:
            raise InternalError(f"a block table of {len(block_table)} blocks cannot hold {length} tokens")
        return self._io.gather(self.layers[layer], block_table, start, length)

    def start(self, transfers: Transfers) -> Outcome:
        """Begin block copies, as `Transfers` orders them; returns those that have ended."""
        return self._mover.start(transfers)

    def poll(self, *, wait: bool = False) -> Outcome:
        """Copies that ended since the last call."""
        return self._mover.poll(wait=wait)

    def sizes_at(self, block_size: int) -> BlockSizes:
        """What the memory holds in blocks of another size: as many bytes of blocks at most, and the null block."""
        pool = pool_layout(self.geometry, self.kv_dtype, block_size, self.form.kv_scales)
        if pool.layers_per_block != len(self.pool.bytes) or len(pool.pieces) != len(self.pieces):
            raise CannotRunError(
                f"{self.geometry.name} shares blocks between its layers in another way at block size {block_size}",
                hint="choose a model with one kind of attention",
            )
        row_bytes = pool.block_bytes // pool.layers_per_block
        blocks = min(self._kv_bytes // pool.block_bytes, self._plane_bytes // row_bytes - 1)
        return BlockSizes(blocks, pool.block_bytes)

    def reblock(self, plan: ReblockPlan) -> Reblocked:
        """Cut the memory into blocks of another size, with what `plan` keeps; see `kvstore/reblock.py`."""
        form = replace(self.form, block_size=plan.block_size)
        new = BlockPool(self.geometry, form, plan.num_blocks, self.device, self.tensor_scales, self.pool.memory)
        moved = staging = 0
        for plane in range(len(self.pool.bytes)):
            layers = [piece.layer_ids[plane] for piece in self.pieces if plane < len(piece.layer_ids)]
            taken = [take_units(self.layers[at], plan.moves[self.group_of_layer[at]], plan.unit) for at in layers]
            for at, units in zip(layers, taken, strict=True):
                put_units(new.layers[at], plan.moves[self.group_of_layer[at]], plan.unit, units)
            size = sum(part.numel() * part.element_size() for units in taken for part in units)
            moved, staging = moved + size, max(staging, size)
        self.form, self.block_size, self.num_blocks = form, plan.block_size, plan.num_blocks
        self._use(new)
        return Reblocked(moved, staging)

    def _use(self, pool: BlockPool) -> None:
        self.pool, self.layers, self.pieces = pool, pool.layers, pool.pieces
        self.group_of_layer = pool.piece_of_layer
        self._mover = self._new_mover([pool.bytes])

    def reset(self) -> None:
        """Copies under way end, files go. Nothing else is to be forgotten: what lies in a block is unreachable once no
        table names it, and it is never read before it is written."""
        self._mover.clear()

    def close(self) -> None:
        """No thread runs and no file is left; the store is of no further use."""
        self._mover.close()

    def _host_tier(self) -> list[Tensor]:
        """`[host_blocks + swap_blocks, layers, block bytes]`; pinned where the device is a GPU."""
        blocks = self.host_blocks + self._swap_blocks
        if blocks == 0:
            return []
        shape = (blocks, self.pool.bytes.shape[0], self.pool.bytes.shape[2])
        if self.device.type == "cuda":
            return [torch.zeros(shape, dtype=torch.uint8, pin_memory=True)]
        return [allocate(shape, self.device)]


def _block_io(device: torch.device, uses_triton: bool) -> BlockIO:
    if uses_triton:
        return TritonIO()
    return NumbaIO() if device.type == "cpu" else TorchIO()


def _kind_of_scales(tensor_scales: TensorScales | None) -> str:
    """As far as a block cares: its scales are in it, or they are not."""
    return "token-head" if tensor_scales is None else "tensor-absmax"


def _allocated(make: Callable[[], _T], what: str) -> _T:
    """`make()`, with the many ways of running out of memory turned into one error."""
    try:
        return make()
    except (MemoryError, OSError, RuntimeError) as error:
        raise CannotRunError(
            f"cannot allocate {what}: {error}", hint="lower kv_memory, host_memory or swap_memory"
        ) from error
