"""Growth of running rows, all in one go: new tail blocks, copies on write, promises spent.

A row writes into its tail block in place only if it is the block's last owner and nobody can look the block up;
otherwise it gets a block of its own and a copy, and the old block loses one reference (E81).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kvbench.cache.types import AppendPlan, Int32s, Int64s
from kvbench.errors import InternalError

if TYPE_CHECKING:
    from kvbench.cache.books import Books


@dataclass(frozen=True, slots=True)
class GrowthDetail:
    growth: Int32s
    """[rows] blocks to add to each row, per group"""
    growing: int
    """Sum of `growth`"""
    copies: list[tuple[int, int]]
    """(group, index into rows) of tail blocks to copy before they are written"""


def plan_growth(books: Books, rows: Int32s, new_lengths: Int32s, epoch: int) -> AppendPlan:
    """See `CacheManager.plan_append`. Reads only."""
    tables = books.tables
    old = tables.lengths[rows]
    _check_growth(books, rows, old, new_lengths)
    growth = (new_lengths + (books.block_size - 1)) // books.block_size - tables.held[rows]
    growing = int(np.add.reduce(growth))
    copies = _copies(books, rows, old, new_lengths)
    new = books.num_groups * growing + len(copies)
    common = new
    if tables.promised_total:
        common -= int(np.minimum(books.num_groups * growth, tables.promised[rows]).sum())
    shortfall = max(0, common - books.supply()) if common else 0
    return AppendPlan(rows, new_lengths, shortfall == 0, new, shortfall, epoch, GrowthDetail(growth, growing, copies))


def commit_growth(books: Books, plan: AppendPlan) -> None:
    """Carry out a fresh plan that fits."""
    detail = plan.detail
    if not isinstance(detail, GrowthDetail):
        raise InternalError("this append plan was not made by the paged manager")
    tables, rows = books.tables, plan.rows
    if plan.new_blocks:
        blocks = books.take(plan.new_blocks)
        if detail.copies:
            _copy_tails(books, rows, detail.copies, blocks[books.num_groups * detail.growing :])
        if detail.growing:
            _extend_rows(books, rows, detail, blocks)
    tables.lengths[rows] = plan.new_lengths


def _check_growth(books: Books, rows: Int32s, old: Int32s, new: Int32s) -> None:
    tables = books.tables
    if not len(rows):
        return
    if not tables.live[rows].all():
        tables.require_live(int(rows[~tables.live[rows]][0]))
    if (new < old).any():
        at = int(np.argmax(new < old))
        raise InternalError(f"row {int(rows[at])} has {int(old[at])} slots and cannot grow to {int(new[at])}")
    if np.maximum.reduce(new) > tables.width * books.block_size:
        at = int(np.argmax(new))
        raise InternalError(f"row {int(rows[at])} cannot grow to {int(new[at])} tokens: that is beyond max_context")
    tables.require_distinct(rows)


def _copies(books: Books, rows: Int32s, old: Int32s, new: Int32s) -> list[tuple[int, int]]:
    """Which tails must be copied. Entries past a row's end are null, so full tails drop out by themselves."""
    pool, tail_index = books.pool, old // books.block_size
    np.minimum(tail_index, books.tables.width - 1, out=tail_index)
    copies: list[tuple[int, int]] = []
    for group in range(books.num_groups):
        tails = books.tables.blocks[group][rows, tail_index]
        shared = (pool.refs[tails] > 1) | (pool.content_ids[tails] != 0)
        if shared.any():
            writes = shared & (new > old) & (old % books.block_size != 0)
            copies += [(group, at) for at in _not_last_owner(books, tails, np.flatnonzero(writes))]
    return copies


def _not_last_owner(books: Books, tails: Int32s, candidates: Int64s) -> list[int]:
    """Of several rows that write into one block in this step, the last owner stays where it is."""
    owners: dict[int, int] = {}
    moving = []
    for at in candidates.tolist():
        block = int(tails[at])
        left = owners.setdefault(block, int(books.pool.refs[block]))
        if left > 1 or books.pool.content_ids[block]:
            owners[block] = left - 1
            moving.append(at)
    return moving


def _copy_tails(books: Books, rows: Int32s, copies: list[tuple[int, int]], blocks: Int32s) -> None:
    tables = books.tables
    for (group, at), block in zip(copies, blocks.tolist(), strict=True):
        row = int(rows[at])
        logical = int(tables.lengths[row]) // books.block_size
        source = int(tables.blocks[group, row, logical])
        books.copy_on_write(source, block)
        tables.blocks[group, row, logical] = block
        books.pool.groups[block] = group
        books.drop(np.array([source], dtype=np.int32))


def _extend_rows(books: Books, rows: Int32s, detail: GrowthDetail, blocks: Int32s) -> None:
    tables, growth = books.tables, detail.growth
    at = growth.nonzero()[0]
    owners, added = rows[at], growth[at]
    held = tables.held[owners]
    tables.held[owners] = held + added
    if detail.growing == len(at):
        entries, logical = owners, held
    else:
        entries = np.repeat(owners, added)
        logical = np.repeat(held - np.cumsum(added, dtype=np.int32) + added, added)
        logical += np.arange(detail.growing, dtype=np.int32)
    for group in range(books.num_groups):
        own = blocks[group * detail.growing : (group + 1) * detail.growing]
        tables.blocks[group][entries, logical] = own
        if books.num_groups > 1:
            books.pool.groups[own] = group
    if tables.promised_total:
        spent = np.minimum(books.num_groups * added, tables.promised[owners])
        tables.promised[owners] -= spent
        tables.promised_total -= int(spent.sum())
