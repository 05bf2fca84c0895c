"""The books of the baselines that reserve must add up: recounted from scratch, as `invariants.py` does for paging."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvbench.cache.types import NULL_BLOCK
from kvbench.errors import InternalError

if TYPE_CHECKING:
    from kvbench.cache.contiguous import ContiguousManager
    from kvbench.cache.types import Int32s, Int64s


def check_reservations(manager: ContiguousManager) -> None:
    """Reservations and free extents tile the pool without a gap or an overlap; entries lie in their reservation."""
    rows = np.flatnonzero(manager.tables.live)
    _check_tiling(manager, rows)
    _check_progress(manager)
    _check_contents(manager, rows)
    _check_entries(manager, rows)


def _check_tiling(manager: ContiguousManager, rows: Int64s) -> None:
    taken_for = manager.extents.taken_for
    pieces = [
        (int(manager.starts[row]), taken_for(manager.groups * int(manager.needs[row])), f"row {row}")
        for row in rows.tolist()
    ]
    taken = sum(size for _, size, _ in pieces)
    pieces += [(start, size, "a free extent") for start, size in manager.extents.items()]
    at, last = 1, manager.settings.num_blocks
    for start, size, owner in sorted(pieces):
        if start != at:
            raise InternalError(f"block {min(at, start)}: {owner} starts at {start}, expected at {at}")
        at += size
    if at != last + 1 or manager.live != len(rows) or manager.taken != taken:
        raise InternalError(f"reservations and free extents end at block {at - 1} of {last}")


def _check_progress(manager: ContiguousManager) -> None:
    """Of every row: computed ≤ length ≤ held slots ≤ reserved ones; a row without a sequence has none of them."""
    tables, needs = manager.tables, manager.needs
    wrong = (tables.computed > tables.lengths) | (tables.held != -(-tables.lengths // tables.block_size))
    wrong |= (tables.held > needs) | (tables.computed < 0) | (~tables.live & (needs + tables.lengths != 0))
    if wrong.any():
        row = int(np.argmax(wrong))
        raise InternalError(
            f"row {row}: {int(tables.computed[row])} tokens computed of {int(tables.lengths[row])}, "
            f"{int(tables.held[row])} blocks held of {int(needs[row])} reserved"
        )


def _check_contents(manager: ContiguousManager, rows: Int64s) -> None:
    tables = manager.tables
    for row in rows.tolist():
        content, computed, length = tables.contents[row], tables.computed[row], tables.lengths[row]
        if content is None or not 0 <= computed <= min(length, content.length):
            raise InternalError(f"row {row} has {computed} computed tokens, {length} slots")


def _check_entries(manager: ContiguousManager, rows: Int64s) -> None:
    tables = manager.tables
    expected = _entries(manager, rows)
    expected[:, np.arange(tables.width) >= tables.held[rows][:, None]] = NULL_BLOCK
    if not np.array_equal(expected, tables.blocks[:, rows]):
        raise InternalError("a row's table names blocks outside its reservation")


def _entries(manager: ContiguousManager, rows: Int64s) -> Int32s:
    """[groups, rows, width] the blocks of whole reservations, one group's after the other's, and beyond."""
    logical = np.arange(manager.tables.width, dtype=np.int32)
    groups = np.arange(manager.groups, dtype=np.int32)[:, None]
    firsts = manager.starts[rows] + groups * manager.needs[rows]
    entries: Int32s = firsts[:, :, None] + logical
    return entries
