"""What a pool may be made of: bytes of KV as they are, or the memory of a device with weights and the rest in it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from kvbench.errors import CannotRunError
from kvbench.geometry.budget import table_bytes
from kvbench.geometry.memory import pool_layout
from kvbench.geometry.sizing import require_room
from kvbench.units import format_bytes

if TYPE_CHECKING:
    from kvbench.geometry.budget import Load
    from kvbench.geometry.memory import PoolLayout
    from kvbench.geometry.model import ModelGeometry
    from kvbench.geometry.sizing import Question


@dataclass(frozen=True, slots=True)
class Pool:
    """One device's pool at one block size and KV dtype."""

    layout: PoolLayout
    num_blocks: int
    """Usable ones: the null block is not among them"""
    table_bytes: int


class Memory(Protocol):
    """Makes pools. `rank` is what one device holds of the model, `load` decides tables."""

    @property
    def rank(self) -> ModelGeometry: ...
    @property
    def load(self) -> Load: ...
    def pool(self, kv_dtype: str, kv_scales: str, block_size: int) -> Pool: ...


@dataclass(frozen=True, slots=True)
class KvMemory:
    """So many bytes of KV on each device, as `engine.kv_memory` says; tables come on top of them."""

    rank: ModelGeometry
    kv_bytes: int
    load: Load

    def pool(self, kv_dtype: str, kv_scales: str, block_size: int) -> Pool:
        """Raises `CannotRunError` where not one block fits."""
        layout = pool_layout(self.rank, kv_dtype, block_size, kv_scales)
        num_blocks = self.kv_bytes // layout.block_bytes
        if num_blocks < 1:
            raise CannotRunError(
                f"{format_bytes(max(0, self.kv_bytes))} of KV hold no block of {block_size} tokens, which takes "
                f"{format_bytes(layout.block_bytes)} ({self.rank.name}, {kv_dtype})",
                hint="give more KV memory, or smaller blocks",
            )
        return Pool(layout, num_blocks, table_bytes(layout, self.load))


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """A device's memory less weights, runtime, tables and headroom: the arithmetic of `kvbench size`."""

    question: Question
    """Its lengths, KV dtypes and block sizes are not looked at"""

    @property
    def rank(self) -> ModelGeometry:
        return self.question.rank

    @property
    def load(self) -> Load:
        return self.question.load

    def pool(self, kv_dtype: str, kv_scales: str, block_size: int) -> Pool:
        """Raises `CannotRunError` with the arithmetic where not one block fits."""
        asked = replace(self.question, kv_dtypes=(kv_dtype,), block_sizes=(block_size,), kv_scales=kv_scales)
        budget = asked.budget(kv_dtype, block_size)
        require_room(asked, budget)
        return Pool(budget.layout, budget.num_blocks, budget.table_bytes)
