"""What every backend needs of a step's batch: checked tables, decode rows, prefill pieces."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kvbench.errors import CannotRunError, InternalError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvbench.engine.batch import StepBatch
    from kvbench.engine.kvstore.store import KVStore


@dataclass(frozen=True, slots=True)
class PrefillPiece:
    """Rows [start, end) of the T axis: the last tokens of a context of `length` tokens."""

    sequence: int
    start: int
    end: int
    length: int


@dataclass(frozen=True, slots=True)
class StagedBatch:
    """`tables` `[G, S, width]` and `lengths` `[S]`, int32 and contiguous; the first `num_decodes` sequences decode."""

    tables: NDArray[np.int32]
    lengths: NDArray[np.int32]
    num_decodes: int
    decode_tokens: int
    pieces: tuple[PrefillPiece, ...]


def stage(batch: StepBatch, store: KVStore) -> StagedBatch:
    """Check the batch against the store and split it."""
    for group in store.geometry.groups:
        if group.kind != "full":
            raise CannotRunError(
                f"{store.geometry.name} has {group.kind} attention layers, which this engine cannot run",
                hint="choose a model with full attention only, such as a llama or qwen3",
            )
    tables = np.ascontiguousarray(batch.block_tables, dtype=np.int32)
    lengths = np.ascontiguousarray(batch.context_lengths, dtype=np.int32)
    _check_tables(tables, lengths, store)
    _check_slots(batch.slots, store)
    count = batch.num_decodes
    return StagedBatch(tables, lengths, count, int(lengths[:count].sum()), _pieces(batch))


def _pieces(batch: StepBatch) -> tuple[PrefillPiece, ...]:
    starts, lengths = batch.query_starts.tolist(), batch.context_lengths.tolist()
    return tuple(
        PrefillPiece(s, starts[s], starts[s + 1], lengths[s])
        for s in range(batch.num_decodes, batch.num_sequences)
        if starts[s + 1] > starts[s]
    )


def _check_tables(tables: NDArray[np.int32], lengths: NDArray[np.int32], store: KVStore) -> None:
    """Every block that holds a token of its sequence exists and is not the null block."""
    used = -(-lengths // store.block_size)
    width = tables.shape[2]
    if used.max(initial=0) > width:
        raise InternalError(f"a block table of {width} blocks cannot hold {lengths.max()} tokens")
    is_wrong = (tables < 1) | (tables > store.num_blocks)
    if is_wrong.any():
        is_wrong &= np.arange(width) < used[:, None]
    if is_wrong.any():
        group, sequence, place = np.argwhere(is_wrong)[0].tolist()
        block = tables[group, sequence, place]
        raise InternalError(f"block table {sequence} (group {group}) names block {block} at place {place}")


def _check_slots(slots: NDArray[np.int64], store: KVStore) -> None:
    first, beyond = store.block_size, (store.num_blocks + 1) * store.block_size
    if slots.size and not (slots.min() >= first and slots.max() < beyond):
        raise InternalError(f"slots {slots.min()} to {slots.max()} of this step are not all in [{first}, {beyond})")
