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
    from numpy.typing import NDArray

    from kvbench.cache.books import Books


@dataclass(slots=True)
class GrowthDetail:
    """What `commit_append` needs of a growth plan beside its figures."""

    at: Int64s
    """The rows, as numpy's index type"""
    growth: Int32s
    """[rows] blocks to add to each row, per group"""
    growing: int
    """Sum of `growth`"""
    copies: list[tuple[int, int]]
    """(group, index into rows) of tail blocks to copy before they are written"""


def plan_growth(books: Books, rows: Int32s, new_lengths: Int32s, epoch: int) -> AppendPlan:
    """See `CacheManager.plan_append`. Reads only."""
    tables = books.tables
    at = rows.astype(np.int64)
    old = tables.lengths.take(at)
    _check_growth(books, at, old, new_lengths)
    growth = (new_lengths + (books.block_size - 1)) // books.block_size - tables.held.take(at)
    growing = int(np.add.reduce(growth))
    copies = _copies(books, at, old, new_lengths)
    new = books.num_groups * growing + len(copies)
    common = new
    if tables.promised_total:
        common -= int(_from_promises(books, at, growth, copies).sum())
    shortfall = max(0, common - books.supply()) if common else 0
    detail = GrowthDetail(at, growth, growing, copies)
    return AppendPlan(rows, new_lengths, shortfall == 0, new, shortfall, epoch, detail)


def commit_growth(books: Books, plan: AppendPlan) -> None:
    """Carry out a fresh plan that fits."""
    detail = plan.detail
    if not isinstance(detail, GrowthDetail):
        raise InternalError("this append plan was not made by the paged manager")
    tables = books.tables
    if plan.new_blocks:
        blocks = books.take(plan.new_blocks)
        if tables.promised_total:
            _spend_promises(books, detail)
        if detail.copies:
            _copy_tails(books, detail, blocks[books.num_groups * detail.growing :])
        if detail.growing:
            _extend_rows(books, detail, blocks)
    tables.lengths[detail.at] = plan.new_lengths


def _from_promises(books: Books, at: Int64s, growth: Int32s, copies: list[tuple[int, int]]) -> Int32s:
    """[rows] blocks that come out of each row's own promise: its growth, and copies as far as the promise goes beyond
    the row's target (a fork's does)."""
    promised = books.tables.promised.take(at)
    spent: Int32s = np.minimum(books.num_groups * growth, promised)
    if copies:
        surplus = np.minimum(_surplus(books, at), promised - spent)
        for _, index in copies:
            spent[index] += surplus[index] > 0
            surplus[index] -= 1
    return spent


def _check_growth(books: Books, rows: Int64s, old: Int32s, new: Int32s) -> None:
    tables = books.tables
    tables.require_distinct(rows)
    live = tables.live.take(rows)
    if np.count_nonzero(live) < len(rows):
        tables.require_live(int(rows[~live][0]))
    wrong = (new < old) | (new > tables.width * books.block_size)
    if np.count_nonzero(wrong):
        at = int(np.argmax(wrong))
        raise InternalError(
            f"row {int(rows[at])} cannot grow from {int(old[at])} to {int(new[at])} slots: it never shrinks here, "
            f"and a table row ends at {tables.width * books.block_size}"
        )


def _copies(books: Books, rows: Int64s, old: Int32s, new: Int32s) -> list[tuple[int, int]]:
    """Which tails must be copied. Entries past a row's end are null, so full tails drop out by themselves."""
    pool, tables = books.pool, books.tables
    entries = rows * tables.width + np.minimum(old // books.block_size, tables.width - 1)
    copies: list[tuple[int, int]] = []
    for group in range(books.num_groups):
        tails = tables.flat[group].take(entries).astype(np.int64)
        shared = (pool.refs.take(tails) > 1) | (pool.content_ids.take(tails) != 0)
        if np.count_nonzero(shared):
            writes = shared & (new > old) & (old % books.block_size != 0)
            copies += [(group, at) for at in _not_last_owner(books, tails, _writers(books, rows, writes))]
    return copies


def _surplus(books: Books, rows: Int64s) -> Int32s:
    """[rows] blocks that each row is promised beyond its growth, for copies."""
    tables = books.tables
    growth = np.maximum(tables.targets.take(rows) - books.num_groups * tables.held.take(rows), 0)
    surplus: Int32s = tables.promised.take(rows) - growth
    return surplus


def _writers(books: Books, rows: Int64s, writes: NDArray[np.bool_]) -> Int64s:
    """Rows that write into a shared tail, those whose promise pays for a copy first: they are the ones to move."""
    at = writes.nonzero()[0]
    return at[np.argsort(_surplus(books, rows[at]) <= 0, kind="stable")] if books.tables.promised_total else at


def _not_last_owner(books: Books, tails: Int64s, candidates: Int64s) -> list[int]:
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


def _spend_promises(books: Books, detail: GrowthDetail) -> None:
    tables = books.tables
    spent = _from_promises(books, detail.at, detail.growth, detail.copies)
    tables.promised[detail.at] -= spent
    tables.promised_total -= int(spent.sum())


def _copy_tails(books: Books, detail: GrowthDetail, blocks: Int64s) -> None:
    tables = books.tables
    for (group, at), block in zip(detail.copies, blocks.tolist(), strict=True):
        row = int(detail.at[at])
        logical = int(tables.lengths[row]) // books.block_size
        source = int(tables.blocks[group, row, logical])
        books.copy_on_write(source, block)
        tables.blocks[group, row, logical] = block
        books.pool.groups[block] = group
        books.drop(np.array([source]))


def _extend_rows(books: Books, detail: GrowthDetail, blocks: Int64s) -> None:
    tables = books.tables
    grown = detail.growth.nonzero()[0]
    owners, added = detail.at[grown], detail.growth[grown]
    held = tables.held.take(owners)
    tables.held[owners] = held + added
    entries = owners * tables.width + held
    if detail.growing > len(grown):
        entries = np.repeat(entries - np.cumsum(added) + added, added) + np.arange(detail.growing)
    for group in range(books.num_groups):
        own = blocks[group * detail.growing : (group + 1) * detail.growing]
        tables.flat[group][entries] = own
        if books.num_groups > 1:
            books.pool.groups[own] = group
