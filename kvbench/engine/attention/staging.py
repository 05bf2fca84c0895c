"""What every backend needs of a step's batch: checked tables, decode rows, prefill pieces."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kvbench.errors import InternalError

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

    def first_seen(self, window: int | None) -> int:
        """The first token that the piece's first row sees."""
        return 0 if window is None else max(0, self.length - (self.end - self.start) - window + 1)


@dataclass(frozen=True, slots=True)
class StagedBatch:
    """`tables` `[G, S, width]` and `lengths` `[S]`, int32 and contiguous; the first `num_decodes` sequences decode.
    `windows` and `decode_tokens`, the tokens that all decodes see, are per group."""

    tables: NDArray[np.int32]
    lengths: NDArray[np.int32]
    num_decodes: int
    windows: tuple[int | None, ...]
    decode_tokens: tuple[int, ...]
    pieces: tuple[PrefillPiece, ...]


def stage(batch: StepBatch, store: KVStore) -> StagedBatch:
    """Check the batch against the store and split it."""
    tables = np.ascontiguousarray(batch.block_tables, dtype=np.int32)
    lengths = np.ascontiguousarray(batch.context_lengths, dtype=np.int32)
    windows = tuple(piece.group.window for piece in store.pieces)
    _check_tables(tables, lengths, batch.query_lengths, windows, store)
    _check_slots(batch.slots, store)
    count = batch.num_decodes
    whole = int(lengths[:count].sum())
    seen = tuple(whole if w is None else int(np.minimum(lengths[:count], w).sum()) for w in windows)
    return StagedBatch(tables, lengths, count, windows, seen, _pieces(batch))


def _pieces(batch: StepBatch) -> tuple[PrefillPiece, ...]:
    starts, lengths = batch.query_starts.tolist(), batch.context_lengths.tolist()
    return tuple(
        PrefillPiece(s, starts[s], starts[s + 1], lengths[s])
        for s in range(batch.num_decodes, batch.num_sequences)
        if starts[s + 1] > starts[s]
    )


def _check_tables(
    tables: NDArray[np.int32],
    lengths: NDArray[np.int32],
    queries: NDArray[np.int32],
    windows: tuple[int | None, ...],
    store: KVStore,
) -> None:
    """Every block that holds a token which some query of its sequence sees exists and is not the null block."""
    used = -(-lengths // store.block_size)
    width = tables.shape[2]
    if used.max(initial=0) > width:
        raise InternalError(f"a block table of {width} blocks cannot hold {lengths.max()} tokens")
    is_wrong = (tables < 1) | (tables > store.num_blocks)
    if is_wrong.any():
        places = np.arange(width)
        is_wrong &= places < used[:, None]
        for group, window in enumerate(windows):
            if window is not None:
                first_seen = np.maximum(lengths - queries - window + 1, 0)
                is_wrong[group] &= places >= (first_seen // store.block_size)[:, None]
    if is_wrong.any():
        group, sequence, place = np.argwhere(is_wrong)[0].tolist()
        block = tables[group, sequence, place]
        raise InternalError(f"block table {sequence} (group {group}) names block {block} at place {place}")


def _check_slots(slots: NDArray[np.int64], store: KVStore) -> None:
    first, beyond = store.block_size, (store.num_blocks + 1) * store.block_size
    if slots.size and not (slots.min() >= first and slots.max() < beyond):
        raise InternalError(f"slots {slots.min()} to {slots.max()} of this step are not all in [{first}, {beyond})")
