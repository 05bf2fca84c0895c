"""Re-blocking: the books of a live pool at another block size, and what must be copied for it.

With u the smaller of the two block sizes, every block consists of units of u tokens. Larger blocks join old ones: a
unit of a new block is an old block. Smaller ones split an old block into new ones.

    rows        keep their slots: unit i of a row stays unit i. Blocks that two rows share wholly stay shared; blocks
                of which they share a part become two.
    promises    cover at least the tokens that were promised
    published   what the rows have computed, in whole new blocks; then, while room lasts, cached contents that fill
                whole new blocks (`reblock_contents.py`)

A plan is a second set of books, made beside the first, which is only read; a refused plan changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from kvbench.cache.books import Books
from kvbench.cache.paged import PagedManager
from kvbench.cache.reblock_contents import keep_cached, publish_rows
from kvbench.cache.types import Int64s
from kvbench.errors import CannotRunError, InternalError, UsageError

if TYPE_CHECKING:
    from kvbench.cache.types import CacheManager, CacheSettings

Unit = tuple[int, int]
"""An old block, and which unit of it."""
Units = tuple[Unit, ...]
"""What a new block is made of; shorter than a block at a row's end."""


@dataclass(frozen=True, slots=True)
class Moves:
    """Units to copy for one layer group: unit `source_unit` of old block `source` becomes unit `target_unit` of new
    block `target`. All `[n]`; no target unit comes twice."""

    source: Int64s
    source_unit: Int64s
    target: Int64s
    target_unit: Int64s

    def __len__(self) -> int:
        return len(self.source)


@dataclass(frozen=True, slots=True)
class ReblockPlan:
    """What re-blocking would do. `moves` has one entry per layer group. `kept_tokens` and `dropped_tokens` belong to
    contents that could be looked up before, and still can or no longer can afterwards, over all layer groups."""

    block_size: int
    num_blocks: int
    unit: int
    shortfall_blocks: int
    moves: tuple[Moves, ...]
    kept_tokens: int
    dropped_tokens: int
    epoch: int
    books: Books

    @property
    def fits(self) -> bool:
        return self.shortfall_blocks == 0


def plan_reblock(manager: CacheManager, block_size: int, num_blocks: int) -> ReblockPlan:
    """What it takes to go on with `num_blocks` blocks of `block_size` tokens. Reads only.

    `UsageError` for a block size that is no multiple of the present one nor divides it, `CannotRunError` for a manager
    whose blocks cannot be cut anew, `InternalError` while copies are under way.
    """
    paged = _paged(manager)
    check_block_sizes(paged.settings.block_size, block_size)
    _check_settings(paged.settings, num_blocks)
    if paged.books.pending or paged.books.pool.in_transfer or paged.books.parked:
        raise InternalError("copies are under way: carry them out before the pool is re-blocked")
    return _Planner(paged, block_size, num_blocks).plan()


def commit_reblock(manager: CacheManager, plan: ReblockPlan) -> None:
    """Go on with the new books; `plan.moves` must be carried out before anything else touches KV."""
    paged = _paged(manager)
    if plan.epoch != paged.epoch or not plan.fits:
        raise InternalError("a refused re-blocking cannot be committed" if plan.shortfall_blocks else "a stale plan")
    paged.replace_books(replace(paged.settings, block_size=plan.block_size, num_blocks=plan.num_blocks), plan.books)


def check_block_sizes(old: int, new: int) -> None:
    """`UsageError` unless one of the two is a multiple of the other."""
    small, large = sorted((old, new))
    if small < 1 or large % small:
        raise UsageError(
            f"blocks of {old} tokens cannot become blocks of {new}",
            hint="one of the two block sizes must be a multiple of the other",
        )


def _paged(manager: CacheManager) -> PagedManager:
    if not isinstance(manager, PagedManager):
        raise CannotRunError("only a paged pool can be re-blocked", hint='set allocator = "paged"')
    return manager


def _check_settings(settings: CacheSettings, num_blocks: int) -> None:
    if num_blocks < 1:
        raise CannotRunError("the memory holds no block of the new size", hint="raise kv_memory")
    if settings.swap_blocks:
        raise CannotRunError("the swap area keeps blocks of the old size", hint='set preemption = "recompute"')
    if settings.host_blocks:
        raise CannotRunError("a host tier keeps blocks of the old size", hint='set offload = "none"')
    if any(group.window is not None for group in settings.groups):
        raise CannotRunError(
            "a pool with sliding-window layers cannot be re-blocked: what left the window is gone in part",
            hint="choose a model whose layers all attend to the full context",
        )


class _Planner:
    """Fills the new books: rows and promises, what the rows publish, cached contents."""

    def __init__(self, manager: PagedManager, block_size: int, num_blocks: int) -> None:
        self.old, self.epoch = manager.books, manager.epoch
        self.block_size, self.num_blocks = block_size, num_blocks
        self.unit = min(block_size, self.old.block_size)
        self.new = Books(replace(manager.settings, block_size=block_size, num_blocks=num_blocks))
        self.rows: list[int] = np.flatnonzero(self.old.tables.live).tolist()
        self.copies: list[dict[Unit, Unit]] = [{} for _ in range(self.old.num_groups)]
        """Per layer group: (new block, unit of it) → where it comes from"""

    def plan(self) -> ReblockPlan:
        shortfall = self._seat_rows()
        kept = dropped = 0
        if not shortfall and self.old.caching:
            publish_rows(self.new, self.rows)
            kept, dropped = keep_cached(self.old, self.new, self.copies)
        return ReblockPlan(
            block_size=self.block_size,
            num_blocks=self.num_blocks,
            unit=self.unit,
            shortfall_blocks=shortfall,
            moves=tuple(_moves(copies) for copies in self.copies),
            kept_tokens=kept,
            dropped_tokens=dropped,
            epoch=self.epoch,
            books=self.new,
        )

    def _seat_rows(self) -> int:
        """Rows and promises in the new books; returns how many blocks are missing, and then leaves them empty."""
        wanted = [[self._units(group, row) for row in self.rows] for group in range(self.old.num_groups)]
        promises = [self._promise(row) for row in self.rows]
        distinct = [dict.fromkeys(units for row in rows for units in row) for rows in wanted]
        total = sum(map(len, distinct))
        shortfall = total + sum(promised for _, promised in promises) - self.num_blocks
        if shortfall > 0:
            return shortfall
        self.new.totals = replace(self.old.totals, blocks_total=self.num_blocks)
        self.new.tables.take_rows(self.old.tables)
        blocks = iter(self.new.pool.allocate(total).tolist())
        for group, rows in enumerate(wanted):
            made = dict(zip(distinct[group], blocks, strict=False))
            for row, units in zip(self.rows, rows, strict=True):
                self._fill_row(group, row, [made[one] for one in units], units)
        for row, (target, promised) in zip(self.rows, promises, strict=True):
            self.new.tables.promise(row, target, promised)
        self._count_owners()
        return 0

    def _units(self, group: int, row: int) -> list[Units]:
        """The row's slots: one entry per new block."""
        tables, size = self.old.tables, self.block_size // self.unit
        held: list[int] = tables.blocks[group, row, : int(tables.held[row])].tolist()
        units = [(block, at) for block in held for at in range(self.old.block_size // self.unit)]
        del units[-(-int(tables.lengths[row]) // self.unit) :]
        return [tuple(units[at : at + size]) for at in range(0, len(units), size)]

    def _promise(self, row: int) -> tuple[int, int]:
        """Blocks up to which the row may grow, and how many of them are set aside: for the tokens that had a block or
        a promise, up to the target."""
        tables, groups = self.old.tables, self.old.num_groups
        target = int(tables.targets[row])
        covered = min(target, groups * int(tables.held[row]) + int(tables.promised[row]))
        held = groups * self.new.tables.blocks_for(int(tables.lengths[row]))
        return self._as_new_blocks(target), max(0, self._as_new_blocks(covered) - held)

    def _as_new_blocks(self, blocks: int) -> int:
        """Old blocks over all groups → new ones that hold as many tokens."""
        tables, groups = self.new.tables, self.old.num_groups
        return groups * min(tables.width, tables.blocks_for(blocks // groups * self.old.block_size))

    def _fill_row(self, group: int, row: int, blocks: list[int], units: list[Units]) -> None:
        new, computed = self.new, -(-int(self.old.tables.computed[row]) // self.unit)
        new.tables.blocks[group, row, : len(blocks)] = blocks
        new.tables.held[row] = len(blocks)
        new.pool.groups[blocks] = group
        targets = [(block, at) for block, parts in zip(blocks, units, strict=True) for at in range(len(parts))]
        sources = [source for parts in units for source in parts]
        self.copies[group].update(zip(targets[:computed], sources, strict=False))

    def _count_owners(self) -> None:
        """Ref counts from the tables, and which rows now share a block that is not full, as forks do."""
        tables, pool = self.new.tables, self.new.pool
        entries = tables.blocks[:, self.rows].ravel()
        owners = np.bincount(entries, minlength=pool.num_blocks + 1).astype(np.int32)
        owners[0] = 0
        pool.refs[:] = owners
        for row in self.rows:
            tail = int(tables.blocks[0, row, max(int(tables.held[row]) - 1, 0)])
            if owners[tail] > 1 and tables.lengths[row] % self.block_size and not tables.forked[row]:
                tables.forked[row] = True
                tables.forks += 1


def _moves(copies: dict[Unit, Unit]) -> Moves:
    targets = np.array(list(copies), dtype=np.int64).reshape(-1, 2)
    sources = np.array(list(copies.values()), dtype=np.int64).reshape(-1, 2)
    return Moves(sources[:, 0], sources[:, 1], targets[:, 0], targets[:, 1])
