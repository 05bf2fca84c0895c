"""The baselines that paging replaced: every sequence reserves adjacent blocks when it is admitted, and no more later.

How many is the `reservation` (reservations.py); where they lie is up to the allocator: `contiguous` takes the first
piece that is large enough (extents.py), `buddy` a piece of 2^k blocks (buddy.py). Of one reservation of `need` blocks
in a piece of `taken` blocks, for a sequence of n tokens, in slots:

    [0, n)                          tokens
    [n, ⌈n / B⌉ · B)                internal waste, as in the paged pool
    [⌈n / B⌉ · B, need · B)         reserved for tokens that may never come
    [need · B, taken · B)           internal waste of the buddy system: no token will ever come
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvbench.cache.buddy import BuddyExtents
from kvbench.cache.extents import Extents
from kvbench.cache.reservation_invariants import check_reservations
from kvbench.cache.reservations import largest_piece, reserved_slots
from kvbench.cache.tables import BlockTables
from kvbench.cache.transfers import Transfers
from kvbench.cache.types import (
    NULL_BLOCK,
    Admission,
    AppendPlan,
    CacheSettings,
    CacheStats,
    Int32s,
    Int64s,
    Plan,
    WithoutTiers,
)
from kvbench.errors import CannotRunError, InternalError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvbench.cache.content import Content
    from kvbench.cache.swap import Swapped


class ContiguousManager(WithoutTiers):
    """`CacheManager` without sharing: no prefix cache, no host tier, no forks. With several layer groups one piece
    holds the reservations of all of them, one after the other."""

    def __init__(self, settings: CacheSettings) -> None:
        if settings.prefix_cache != "none" or settings.host_blocks:
            raise CannotRunError(
                "contiguous reservations cannot share blocks, so they have neither a prefix cache nor a host tier",
                hint='set prefix_cache = "none" and offload = "none"',
            )
        self.settings = settings
        self.listener: Callable[[str, bytes], None] | None = None
        self.epoch = 0
        self._start()

    def _start(self) -> None:
        settings = self.settings
        self.tables = BlockTables(
            len(settings.groups), settings.max_sequences, settings.max_context, settings.block_size
        )
        self.groups = len(settings.groups)
        buddy = settings.allocator == "buddy"
        self.extents = BuddyExtents(settings.num_blocks) if buddy else Extents(settings.num_blocks)
        self.starts = np.zeros(settings.max_sequences, dtype=np.int32)
        self.needs = np.zeros(settings.max_sequences, dtype=np.int32)
        """Reserved blocks per layer group"""
        self.taken = 0
        """Blocks of all pieces that are taken"""
        self.live = 0
        self.asked = self.groups * self._need(1, settings.max_context)
        """Blocks that the latest plan wanted: what counts as too small a piece"""

    def plan(
        self,
        content: Content,
        hold_tokens: int,
        promise_tokens: int = 0,
        *,
        readmission: bool = False,
        fork_blocks: int = 0,
        swapped: Swapped | None = None,
    ) -> Plan:
        """`promise_tokens` is the sequence at its longest; `max` reserves the maximum whatever it is."""
        if fork_blocks:
            raise _no_sharing()
        slots = max(hold_tokens, promise_tokens, content.length)
        if content.length < 1 or hold_tokens < 0 or slots > self._slots_per_row():
            raise InternalError(f"a sequence of {content.length} tokens does not fit a reservation")
        need = self._need(content.length, slots)
        self.asked = self.extents.taken_for(self.groups * need)
        largest = self.extents.largest()
        return Plan(
            content=content,
            fits=self.asked <= largest,
            cached_tokens=0,
            hold_tokens=hold_tokens,
            promise_tokens=promise_tokens,
            new_blocks=self.asked,
            promote_blocks=0,
            evict_blocks=0,
            shortfall_blocks=max(0, self.asked - largest),
            epoch=self.epoch,
            detail=need,
        )

    def commit(self, plan: Plan) -> Admission:
        self._begin(plan)
        if not isinstance(plan.detail, int):
            raise InternalError("this plan was not made by the contiguous manager")
        row = self.tables.open(plan.content, plan.hold_tokens)
        self.needs[row] = plan.detail
        self.starts[row] = self.extents.allocate(self.groups * plan.detail)
        self.taken += self.extents.taken_for(self.groups * plan.detail)
        self.live += 1
        self._fill(np.array([row]), np.array([0]), np.array([int(self.tables.held[row])]))
        return Admission(row, 0, 0)

    def can_ever_fit(self, tokens: int) -> bool:
        least = self.groups * (self._need(1, tokens) if self.settings.reservation == "max" else self._blocks(tokens))
        largest = largest_piece(self.settings.allocator, self.settings.num_blocks)
        return tokens <= self.settings.max_context and least <= largest

    def plan_append(self, rows: Int32s, new_lengths: Int32s) -> AppendPlan:
        wrong = (new_lengths < self.tables.lengths[rows]) | (new_lengths > self._slots_per_row())
        if wrong.any():
            at = int(np.argmax(wrong))
            raise InternalError(f"row {int(rows[at])} cannot have {int(new_lengths[at])} slots")
        for row in rows[~self.tables.live[rows]].tolist():
            self.tables.require_live(row)
        self.tables.require_distinct(rows.astype(np.int64))
        beyond = np.maximum(-(-new_lengths // self.tables.block_size) - self.needs[rows], 0)
        shortfall = self.groups * int(beyond.sum())
        return AppendPlan(rows, new_lengths, not shortfall, 0, shortfall, self.epoch)

    def commit_append(self, plan: AppendPlan) -> None:
        self._begin(plan)
        tables, rows = self.tables, plan.rows
        held = -(-plan.new_lengths // tables.block_size)
        self._fill(rows, tables.held[rows], held)
        tables.held[rows] = held
        tables.lengths[rows] = plan.new_lengths

    def slots(self, rows: Int32s, starts: Int32s, counts: Int32s, group: int = 0) -> Int64s:
        return self.tables.slots(rows, starts, counts, group)

    def table(self, rows: Int32s, width: int, group: int = 0) -> Int32s:
        blocks: Int32s = self.tables.blocks[group, rows, :width]
        return blocks

    def mark_computed(self, rows: Int32s, lengths: Int32s) -> None:
        wrong = (lengths > self.tables.lengths[rows]) | (lengths < self.tables.computed[rows])
        if wrong.any():
            at = int(np.argmax(wrong))
            raise InternalError(f"row {int(rows[at])} cannot have {int(lengths[at])} computed tokens")
        self.epoch += 1
        self.tables.computed[rows] = lengths

    def release(self, row: int) -> None:
        self.epoch += 1
        self.tables.close(row)
        need = self.groups * int(self.needs[row])
        self.extents.free(int(self.starts[row]), need)
        self.taken -= self.extents.taken_for(need)
        self.starts[row], self.needs[row] = NULL_BLOCK, 0
        self.live -= 1

    def references(self, row: int) -> float:
        return 0.0

    def fork_blocks(self, length: int, promise_tokens: int) -> int:
        raise _no_sharing()

    def fork(self, row: int, content: Content, promise_tokens: int = 0) -> int:
        raise _no_sharing()

    def reorder(self, rows: Int32s, parents: Int32s, contents: Sequence[Content]) -> None:
        raise _no_sharing()

    def truncate(self, row: int, length: int) -> None:
        self.tables.require_live(row)
        if not 0 <= length <= self.tables.lengths[row]:
            raise InternalError(f"row {row} has {int(self.tables.lengths[row])} slots and cannot be cut to {length}")
        self.epoch += 1
        self.tables.cut(row, length)

    def peak_blocks(self, row: int) -> int:
        """Blocks that hold tokens; the reservation is larger. A window group keeps everything here."""
        self.tables.require_live(row)
        return len(self.settings.groups) * int(self.tables.held[row])

    def take_transfers(self) -> Transfers:
        return Transfers()

    def complete(self, transfers: Transfers) -> list[int]:
        if transfers:
            raise InternalError("the contiguous manager has no copies to complete")
        return []

    def stats(self) -> CacheStats:
        size = self.settings.block_size
        free, reserved = self.extents.total, self.groups * int(self.needs.sum())
        return CacheStats(
            blocks_total=self.settings.num_blocks,
            blocks_free=free,
            blocks_used=self.settings.num_blocks - free,
            internal_slots=self.groups * self.tables.tail_waste() + size * (self.taken - reserved),
            reserved_slots=size * (reserved - self.groups * int(self.tables.held.sum())),
            external_blocks=self.extents.smaller_than(self.asked),
        )

    def reset(self) -> None:
        if self.live:
            raise InternalError(f"{self.live} sequences are still live: release them before a reset")
        self.epoch += 1
        self._start()

    def check_invariants(self) -> None:
        check_reservations(self)

    def _fill(self, rows: Int32s | Int64s, old: Int32s | Int64s, new: Int32s | Int64s) -> None:
        """Table entries [old, new) of each row."""
        growth = new - old
        total = int(growth.sum())
        if not total:
            return
        owners = np.repeat(rows, growth)
        logical = np.arange(total) + np.repeat(old - np.cumsum(growth) + growth, growth)
        for group in range(self.groups):
            self.tables.blocks[group][owners, logical] = self.starts[owners] + group * self.needs[owners] + logical

    def _need(self, prompt: int, slots: int) -> int:
        """Blocks per layer group to reserve; never more than an empty pool has, if the sequence itself fits that."""
        settings = self.settings
        need = self._blocks(reserved_slots(settings.reservation, prompt, slots, settings.max_context))
        most = largest_piece(settings.allocator, settings.num_blocks) // self.groups
        return min(need, max(most, self._blocks(slots))) if settings.reservation == "pow2" else need

    def _blocks(self, tokens: int) -> int:
        return self.tables.blocks_for(tokens)

    def _slots_per_row(self) -> int:
        return self.tables.width * self.settings.block_size

    def _begin(self, plan: Plan | AppendPlan) -> None:
        if plan.epoch != self.epoch or not plan.fits:
            raise InternalError("a stale plan" if plan.fits else "a refused plan cannot be committed")
        self.epoch += 1


def _no_sharing() -> CannotRunError:
    return CannotRunError(
        "contiguous reservations cannot share blocks, so a sequence cannot be forked", hint='set allocator = "paged"'
    )
