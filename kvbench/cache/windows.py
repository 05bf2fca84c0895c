"""Sliding windows in the books: which blocks a row still needs, which it lets go, how many it may come to need.

With c tokens computed the next query reads from position c − W + 1 on, so the first ⌊max(0, c − W + 1) / B⌋ blocks of a
window group are let go (E47): by `mark_computed`, for all rows of a step at once.

A row is promised what it may hold at most at any one time, less what it holds: blocks that it lets go pay for those
that it takes later. That cap is `geometry.memory.window_blocks`, the same for sizing, admission and growth (E48).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from kvbench.cache.types import NULL_BLOCK
from kvbench.errors import InternalError
from kvbench.geometry.memory import window_blocks

if TYPE_CHECKING:
    from kvbench.cache.books import Books
    from kvbench.cache.tables import BlockTables
    from kvbench.cache.types import CacheSettings, Int32s, Int64s

_NO_CAP = 1 << 30


@dataclass(frozen=True, slots=True)
class WindowKind:
    """Groups with one and the same window; their tables are null in the same places."""

    window: int
    groups: Int64s
    prefill_cap: int
    """Blocks per group while known tokens are being computed"""
    decode_cap: int
    tail: int
    """Blocks before a block boundary that the next query reads: ⌈(W − 1) / B⌉"""


class Windows:
    """The window groups of one manager, and what is known of each row because of them."""

    def __init__(self, settings: CacheSettings) -> None:
        sizes = [group.window for group in settings.groups]
        self.block_size = settings.block_size
        self.num_groups = len(sizes)
        self.full_groups = [group for group, window in enumerate(sizes) if window is None]
        self.kinds = [_kind(settings, window, sizes) for window in sorted({w for w in sizes if w is not None})]
        self.kind_of_group = {int(group): kind for kind in self.kinds for group in kind.groups}
        self.known = np.zeros(settings.max_sequences, dtype=np.int32)
        """[rows] tokens known at the admission: until they are computed, steps are as long as `step_tokens`"""
        self.peak = np.zeros(settings.max_sequences, dtype=np.int32)
        """[rows] most blocks held, over all groups, before the last time that some were let go"""
        self.for_forks = np.zeros(settings.max_sequences, dtype=np.int32)
        """[rows] blocks of the row's promise that are for rows to be forked from it"""

    def open(self, row: int, known: int, for_forks: int = 0) -> None:
        self.known[row] = known
        self.for_forks[row] = for_forks
        self.peak[row] = 0

    def first_block(self, group: int, computed: int) -> int:
        """The first logical block that the next query reads."""
        kind = self.kind_of_group.get(group)
        return 0 if kind is None else self._freed(kind, computed)

    def most_blocks(self, tokens: int) -> int:
        """Most that one sequence of so many tokens holds at once, over all groups."""
        blocks = -(-tokens // self.block_size)
        return len(self.full_groups) * blocks + sum(
            len(kind.groups) * min(blocks, max(kind.prefill_cap, kind.decode_cap)) for kind in self.kinds
        )

    def blocks_of(self, tables: BlockTables, row: int) -> Int64s:
        """Blocks of the row in window groups."""
        own = np.concatenate([tables.blocks[kind.groups, row].ravel() for kind in self.kinds])
        real: Int64s = own[own != NULL_BLOCK].astype(np.int64)
        return real

    def fork_need(self, held: int, promise: int, computed: int) -> int:
        """Blocks for a row that is forked at `held` blocks per group until it has `promise`: its growth, and a claim
        on every window block that it shares."""
        shared = sum(len(kind.groups) * (held - self._freed(kind, computed)) for kind in self.kinds)
        return shared + int(self.to_promise(promise, held, 0, computed))

    def _freed(self, kind: WindowKind, computed: int) -> int:
        return max(0, computed - kind.window + 1) // self.block_size

    def note_peak(self, tables: BlockTables, rows: Int64s) -> None:
        """These rows are about to let go of blocks."""
        held = self.num_groups * tables.held.take(rows)
        for kind in self.kinds:
            held -= len(kind.groups) * tables.freed[kind.groups[0]].take(rows)
        self.peak[rows] = np.maximum(self.peak.take(rows), held)

    def require_readable(self, tables: BlockTables, row: int, computed: int) -> None:
        """Cut back to `computed` tokens, the row must still have all that its next query reads."""
        for kind in self.kinds:
            freed = int(tables.freed[kind.groups[0], row])
            if freed > max(0, computed - kind.window + 1) // self.block_size:
                raise InternalError(
                    f"row {row} cannot be cut to {computed} computed tokens: its window of {kind.window} has moved on, "
                    f"and its first {freed} blocks are gone"
                )

    def to_promise_row(self, tables: BlockTables, row: int) -> int:
        """`to_promise` of one live row."""
        promise = int(tables.targets[row]) // self.num_groups
        return int(self.to_promise(promise, int(tables.held[row]), int(self.known[row]), int(tables.computed[row])))

    def to_promise(self, promise: Any, held: Any, known: Any, computed: Any) -> Any:
        """Blocks to set aside for growth to `promise` blocks per group, for one row or for many.

        `held` is in blocks, `known` and `computed` in tokens. Never more than the growth itself; in a window group
        never more than what is missing to the most that it holds at once, now or later.
        """
        left = np.maximum(promise - held, 0)
        total = len(self.full_groups) * left
        prompt = np.minimum(-(-known // self.block_size), promise)
        for kind in self.kinds:
            most = np.minimum(promise, kind.decode_cap)
            most = np.where(computed < known, np.maximum(most, np.minimum(prompt, kind.prefill_cap)), most)
            real = held - np.maximum(computed - kind.window + 1, 0) // self.block_size
            total = total + len(kind.groups) * np.clip(most - real, 0, left)
        return total


def most_blocks(settings: CacheSettings, tokens: int) -> int:
    """Most blocks that one sequence of so many tokens holds at once, over all groups, windows or not."""
    if any(group.window is not None for group in settings.groups):
        return Windows(settings).most_blocks(tokens)
    return len(settings.groups) * -(-tokens // settings.block_size)


def _kind(settings: CacheSettings, window: int, sizes: list[int | None]) -> WindowKind:
    size, step = settings.block_size, settings.step_tokens
    return WindowKind(
        window=window,
        groups=np.array([group for group, other in enumerate(sizes) if other == window], dtype=np.int64),
        prefill_cap=_NO_CAP if step is None else window_blocks(window, size, step),
        decode_cap=window_blocks(window, size, settings.decode_tokens),
        tail=-(-(window - 1) // size),
    )


def slide(books: Books, windows: Windows, rows: Int64s, computed: Int32s) -> None:
    """These rows have so many tokens computed: blocks out of the window leave, promises follow."""
    tables = books.tables
    left: list[Int64s] = []
    for kind in windows.kinds:
        first = np.maximum(computed - (kind.window - 1), 0) // books.block_size
        old = tables.freed[kind.groups[0]].take(rows)
        due = (first > old).nonzero()[0]
        if len(due):
            leaving = rows[due]
            windows.note_peak(tables, leaving)
            left += _leave(tables, kind, leaving, old[due], first[due])
    if left:
        books.drop_outside(np.concatenate(left) if len(left) > 1 else left[0])
    _renew_promises(books, windows, rows, computed)


def _leave(tables: BlockTables, kind: WindowKind, rows: Int64s, old: Int32s, first: Int32s) -> list[Int64s]:
    """Entries [old, first) of the rows become null in every group of the kind; the blocks that were there, the lowest
    logical block first."""
    counts = first - old
    entries = rows * tables.width + old
    if np.count_nonzero(counts == 1) < len(rows):
        entries = np.repeat(entries - np.cumsum(counts) + counts, counts) + np.arange(int(counts.sum()))
    left = []
    for group in kind.groups.tolist():
        flat = tables.flat[group]
        left.append(flat.take(entries).astype(np.int64))
        flat[entries] = NULL_BLOCK
        tables.freed[group, rows] = first
    return left


def _renew_promises(books: Books, windows: Windows, rows: Int64s, computed: Int32s) -> None:
    """Rows that may still grow are promised what they gave back, as far as the supply goes: it always does, unless the
    blocks were shared with a fork that was promised nothing."""
    tables = books.tables
    promise = tables.targets.take(rows) // windows.num_groups
    growing = (promise > tables.held.take(rows)).nonzero()[0]
    if not len(growing):
        return
    rows, promise = rows[growing], promise[growing]
    wanted = windows.to_promise(promise, tables.held.take(rows), windows.known.take(rows), computed[growing])
    more = wanted + windows.for_forks.take(rows) - tables.promised.take(rows)
    supply = books.supply() - int(np.minimum(more, 0).sum())
    if int(np.maximum(more, 0).sum()) > supply:
        spent = np.minimum(np.cumsum(np.maximum(more, 0)), max(supply, 0))
        more = np.where(more > 0, np.diff(spent, prepend=0), more)
    tables.promised[rows] += more
    tables.promised_total += int(more.sum())
