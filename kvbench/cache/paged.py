"""The paged manager: block tables over a shared pool, with a prefix index and a host tier behind one door."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from kvbench.cache.admission import commit_admission, plan_admission
from kvbench.cache.books import Books
from kvbench.cache.forking import fork_blocks, fork_row, reorder_rows
from kvbench.cache.growth import commit_growth, plan_growth
from kvbench.cache.invariants import check_books
from kvbench.cache.publishing import publish_progress
from kvbench.cache.swap import Swapped, swap_out
from kvbench.cache.transfers import Transfers
from kvbench.cache.types import NULL_BLOCK, Admission, AppendPlan, CacheSettings, CacheStats, Int32s, Int64s, Plan
from kvbench.cache.windows import slide
from kvbench.errors import CannotRunError, InternalError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvbench.cache.content import Content


class PagedManager:
    """`CacheManager` with blocks from one pool. Every change advances the epoch, which makes older plans stale."""

    def __init__(self, settings: CacheSettings) -> None:
        if any(group.window is not None for group in settings.groups):
            _check_windows(settings)
        self.settings = settings
        self.books = Books(settings)
        self.epoch = 0
        self._listener: Callable[[str, bytes], None] | None = None

    @property
    def listener(self) -> Callable[[str, bytes], None] | None:
        return self._listener

    @listener.setter
    def listener(self, listener: Callable[[str, bytes], None] | None) -> None:
        self._listener = listener
        for index in self.books.indexes:
            index.listener = listener

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
        return plan_admission(
            self.books, content, hold_tokens, promise_tokens, readmission, self.epoch, fork_blocks, swapped
        )

    def commit(self, plan: Plan) -> Admission:
        self._begin(plan)
        return commit_admission(self.books, plan)

    def can_ever_fit(self, tokens: int) -> bool:
        blocks = self.books.num_groups * self.books.tables.blocks_for(tokens)
        if self.books.windows is not None:
            blocks = self.books.windows.most_blocks(tokens)
        return tokens <= self.settings.max_context and blocks <= self.settings.num_blocks

    def plan_append(self, rows: Int32s, new_lengths: Int32s) -> AppendPlan:
        return plan_growth(self.books, rows, new_lengths, self.epoch)

    def commit_append(self, plan: AppendPlan) -> None:
        self._begin(plan)
        commit_growth(self.books, plan)

    def slots(self, rows: Int32s, starts: Int32s, counts: Int32s, group: int = 0) -> Int64s:
        return self.books.tables.slots(rows, starts, counts, group)

    def table(self, rows: Int32s, width: int, group: int = 0) -> Int32s:
        blocks: Int32s = self.books.tables.blocks[group, rows, :width]
        return blocks

    def mark_computed(self, rows: Int32s, lengths: Int32s) -> None:
        tables, at = self.books.tables, rows.astype(np.int64)
        if np.count_nonzero((lengths > tables.lengths.take(at)) | (lengths < tables.computed.take(at))):
            self._refuse_progress(rows, lengths)
        self.epoch += 1
        tables.computed[at] = lengths
        if self.books.caching:
            publish_progress(self.books, at, lengths)
        if self.books.windows is not None:
            slide(self.books, self.books.windows, at, lengths)

    def release(self, row: int) -> None:
        self.epoch += 1
        self.books.close(row)

    def deferred_blocks(self) -> int:
        return sum(len(blocks) for blocks in self.books.parked)

    def is_loading(self, row: int) -> bool:
        return row in self.books.arrivals.rows

    def swap_out(self, row: int) -> Swapped | None:
        self.books.tables.require_live(row)
        swapped = swap_out(self.books, row)
        if swapped is None:
            self.books.totals.swap_refusals += 1
            return None
        self.epoch += 1
        self.books.totals.swapped_out += 1
        self.books.close(row)
        return swapped

    def give_up_swapped(self, swapped: Swapped) -> None:
        if self.books.swap is not None:
            self.books.swap.give_up(swapped)

    def switch_off_disk(self) -> None:
        if self.books.below is not None and self.books.below.disk is not None:
            self.epoch += 1
            self.books.below.disk.switch_off()

    def references(self, row: int) -> float:
        tables, pool = self.books.tables, self.books.pool
        blocks = tables.blocks[:, row, : int(tables.held[row])]
        blocks = blocks[blocks != NULL_BLOCK]
        return float((pool.refs[blocks] - 1 + pool.hits[blocks]).mean()) if len(blocks) else 0.0

    def fork_blocks(self, length: int, promise_tokens: int) -> int:
        return fork_blocks(self.books, length, promise_tokens)

    def fork(self, row: int, content: Content, promise_tokens: int = 0) -> int:
        twin = fork_row(self.books, row, content, promise_tokens)
        self.epoch += 1
        return twin

    def reorder(self, rows: Int32s, parents: Int32s, contents: Sequence[Content]) -> None:
        self.epoch += 1
        reorder_rows(self.books, rows, parents, contents)

    def truncate(self, row: int, length: int) -> None:
        tables, pool = self.books.tables, self.books.pool
        tables.require_live(row)
        if not 0 <= length <= tables.lengths[row]:
            raise InternalError(f"row {row} has {int(tables.lengths[row])} slots and cannot be cut to {length}")
        touched = tables.blocks[:, row, length // self.books.block_size : int(tables.held[row])]
        if pool.in_transfer and pool.pins[touched].any():
            raise InternalError(f"row {row} takes part in pending copies: complete them before it is cut")
        if self.books.windows is not None:
            self.books.windows.require_readable(tables, row, min(length, int(tables.computed[row])))
        self.epoch += 1
        dropped = tables.cut(row, length)
        supply = self.books.supply()
        self.books.drop(dropped)
        self._set_aside_again(row, self.books.supply() - supply)

    def peak_blocks(self, row: int) -> int:
        tables, windows = self.books.tables, self.books.windows
        tables.require_live(row)
        held = int(self.books.num_groups * tables.held[row] - tables.freed[:, row].sum())
        return held if windows is None else max(held, int(windows.peak[row]))

    def take_transfers(self) -> Transfers:
        taken, self.books.pending = self.books.pending, Transfers()
        return taken

    def complete(self, transfers: Transfers) -> list[int]:
        if not transfers:
            return []
        self.epoch += 1
        return self.books.complete(transfers)

    def fail(self, transfers: Transfers) -> list[int]:
        self.epoch += 1
        return self.books.fail(transfers)

    def stats(self) -> CacheStats:
        books = self.books
        return replace(
            books.totals,
            blocks_free=books.pool.free,
            blocks_cached=books.pool.cached,
            blocks_used=books.pool.used,
            blocks_in_transfer=books.pool.in_transfer,
            live_cached_tokens=books.block_size * books.cached_contents(),
            internal_slots=books.num_groups * books.tables.tail_waste(),
            reserved_slots=books.block_size * (books.tables.promised_total + books.claimed),
            host_blocks_used=books.below.host.used if books.below is not None else 0,
            disk_blocks_used=books.below.disk.used if books.below is not None and books.below.disk is not None else 0,
            swap_blocks_used=books.swap.used if books.swap is not None else 0,
        )

    def reset(self) -> None:
        live = np.flatnonzero(self.books.tables.live)
        if len(live):
            raise InternalError(f"row {int(live[0])} is still live: release all sequences before a reset")
        self.epoch += 1
        self.books = Books(self.settings)
        self.listener = self._listener

    def forget_cached(self, count: int) -> int:
        """Evict up to `count` cached blocks now, in the policy's order, as if room were needed; how many went."""
        self.epoch += 1
        return self.books.forget(min(count, self.books.pool.cached))

    def replace_books(self, settings: CacheSettings, books: Books) -> None:
        """Go on with other books of the same rows (re-blocking); every key changes, and the listener hears so."""
        heard = self._listener is not None
        removed = [key for index in self.books.indexes for key in index.names()] if heard else []
        self.epoch += 1
        self.settings, self.books = settings, books
        if self._listener is not None:
            for key in removed:
                self._listener("removed", key)
            for key in (key for index in books.indexes for key in index.names()):
                self._listener("stored", key)
        self.listener = self._listener

    def check_invariants(self) -> None:
        check_books(self.books)

    def _begin(self, plan: Plan | AppendPlan) -> None:
        if plan.epoch != self.epoch:
            raise InternalError(f"a stale plan: made at change {plan.epoch}, the books are at {self.epoch}")
        if not plan.fits:
            raise InternalError(f"a refused plan cannot be committed: {plan.shortfall_blocks} blocks are missing")
        self.epoch += 1

    def _set_aside_again(self, row: int, returned: int) -> None:
        """Blocks that a cut gave back serve the row's promise again."""
        tables = self.books.tables
        wanted = int(tables.targets[row]) - self.books.num_groups * int(tables.held[row])
        if self.books.windows is not None:
            wanted = self.books.windows.to_promise_row(tables, row) + int(self.books.windows.for_forks[row])
        again = max(0, min(returned, wanted - int(tables.promised[row])))
        tables.set_aside(row, again)

    def _refuse_progress(self, rows: Int32s, lengths: Int32s) -> None:
        tables = self.books.tables
        at = int(np.argmax((lengths > tables.lengths[rows]) | (lengths < tables.computed[rows])))
        row = int(rows[at])
        tables.require_live(row)
        raise InternalError(
            f"row {row} cannot have {int(lengths[at])} computed tokens: it has {int(tables.computed[row])} already "
            f"and slots for {int(tables.lengths[row])}"
        )


def _check_windows(settings: CacheSettings) -> None:
    """What works with whole prefixes does not work with layers that keep only their tails."""
    if settings.host_blocks:
        raise CannotRunError(
            "the host tier keeps whole prefixes; sliding-window layers keep only their tails",
            hint='set offload = "none", or choose a model whose layers all attend to the full context',
        )
    if settings.swap_blocks:
        raise CannotRunError(
            "swap copies whole sequences; sliding-window layers keep only their tails",
            hint='set preemption = "recompute", or choose a model whose layers all attend to the full context',
        )
    if settings.partial_block_reuse and settings.prefix_cache != "none":
        raise CannotRunError(
            "reuse inside a block goes by the block before it, which sliding-window layers may have let go",
            hint="set partial_block_reuse = false, or choose a model whose layers all attend to the full context",
        )
