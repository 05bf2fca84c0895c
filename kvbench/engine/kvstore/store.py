"""The KV tensors of one engine: allocate, write, gather, move.

Sizes come from `geometry.memory`; which block holds what is the cache manager's business. The store knows slots
(block · block_size + place) and physical blocks only, never sequences or keys.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import torch

from kvbench.engine.kvstore.pool import GroupPool, LayerView, allocate
from kvbench.engine.kvstore.reading_writing import BlockIO, NumbaIO, TorchIO
from kvbench.engine.kvstore.transfer import BlockMover, TransferResult
from kvbench.errors import CannotRunError, InternalError
from kvbench.geometry.dtypes import canonical_dtype

if TYPE_CHECKING:
    from torch import Tensor

    from kvbench.cache.types import Transfers
    from kvbench.geometry.model import ModelGeometry

_T = TypeVar("_T")


class KVStore:
    """K and V of all layers in `num_blocks` usable blocks of `block_size` tokens, and `host_blocks` in host memory.

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
        device: str | torch.device = "cpu",
    ) -> None:
        self.geometry, self.kv_dtype = geometry, canonical_dtype(kv_dtype)
        self.block_size, self.num_blocks, self.host_blocks = block_size, num_blocks, host_blocks
        self.device = torch.device(device)
        self.pools = _allocated(
            lambda: [GroupPool(g, kv_dtype, block_size, num_blocks, self.device) for g in geometry.groups],
            f"{num_blocks} KV blocks on {device}",
        )
        self.hosts = _allocated(self._host_tier, f"{host_blocks} KV blocks in host memory")
        self.layers = _by_layer(geometry, self.pools)
        self.group_of_layer = [_group_of(geometry, layer) for layer in range(geometry.num_layers)]
        self._io: BlockIO = NumbaIO() if self.device.type == "cpu" else TorchIO()
        self._mover = BlockMover([pool.bytes for pool in self.pools], self.hosts)

    @property
    def block_bytes(self) -> int:
        """One physical block over all layers."""
        return sum(pool.bytes.shape[0] * pool.bytes.shape[2] for pool in self.pools)

    @property
    def capacity_bytes(self) -> int:
        """Usable blocks; the null block is not among them."""
        return self.num_blocks * self.block_bytes

    def write(self, layer: int, k: Tensor, v: Tensor, slots: Tensor) -> None:
        """Quantise and store K and V `[T, kv_heads, d]` at slots `[T]` int64 (block · block_size + place)."""
        self._io.write(self.layers[layer], k, v, slots)

    def gather(self, layer: int, block_table: Tensor, length: int) -> tuple[Tensor, Tensor]:
        """float32 K and V `[kv_heads, length, d]` as they are stored, for the first `length` tokens of an int32 block
        table `[n]`."""
        if length > len(block_table) * self.block_size:
            raise InternalError(f"a block table of {len(block_table)} blocks cannot hold {length} tokens")
        return self._io.gather(self.layers[layer], block_table, length)

    def transfer(self, transfers: Transfers) -> TransferResult:
        """Carry out block copies, complete on return: offload, then promote, then copy."""
        return self._mover.move(transfers)

    def reset(self) -> None:
        """Nothing to forget: what lies in a block is unreachable once no table names it, and it is never read before
        it is written. Contents stay, so that a reset costs nothing."""

    def _host_tier(self) -> list[Tensor]:
        """`[host_blocks, layers, block bytes]` for every group; pinned where the device is a GPU."""
        if self.host_blocks == 0:
            return []
        shapes = [(self.host_blocks, pool.bytes.shape[0], pool.bytes.shape[2]) for pool in self.pools]
        if self.device.type == "cuda":
            return [torch.zeros(shape, dtype=torch.uint8, pin_memory=True) for shape in shapes]
        return [allocate(shape, self.device) for shape in shapes]


def _allocated(make: Callable[[], _T], what: str) -> _T:
    """`make()`, with the many ways of running out of memory turned into one error."""
    try:
        return make()
    except (MemoryError, OSError, RuntimeError) as error:
        raise CannotRunError(f"cannot allocate {what}: {error}", hint="lower kv_memory or host_memory") from error


def _by_layer(geometry: ModelGeometry, pools: list[GroupPool]) -> list[LayerView]:
    views = {
        layer: view
        for group, pool in zip(geometry.groups, pools, strict=True)
        for layer, view in zip(group.layers, pool.layers, strict=True)
    }
    return [views[layer] for layer in range(geometry.num_layers)]


def _group_of(geometry: ModelGeometry, layer: int) -> int:
    return next(index for index, group in enumerate(geometry.groups) if layer in group.layers)
