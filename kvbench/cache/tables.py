"""Block tables: one row per live sequence, one matrix for all of them.

Of one row, with length n, `held` = ⌈n / block_size⌉ and c tokens computed, in units of tokens:

    [0, published · block_size)   full blocks offered to the prefix index; their contents never change again
    [.., c)                       computed: KV is stored
    [c, n)                        slots assigned to tokens of the step in flight; this row alone writes there
    [n, held · block_size)        internal waste: the rest of the tail block
    [held · block_size, promise)  no blocks yet; `promised` blocks of the pool's supply are set aside for it

and of one layer group of the row, in units of logical blocks:

    [0, freed)     the null block: in a window group what no query reads any more, ⌊max(0, c − W + 1) / block_size⌋
                   blocks (`windows.py`); nothing in a full group
    [freed, held)  real blocks, one reference each
    [held, width)  the null block
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvbench.cache.types import NULL_BLOCK, Int32s, Int64s
from kvbench.errors import InternalError

if TYPE_CHECKING:
    from kvbench.cache.content import Content


class BlockTables:
    """`blocks` int32 [groups, max_sequences, max_blocks], the matrix that kernels read, and per-row progress."""

    def __init__(self, num_groups: int, max_sequences: int, max_context: int, block_size: int) -> None:
        self.block_size = block_size
        self.width = -(-max_context // block_size)
        self.blocks = np.zeros((num_groups, max_sequences, self.width), dtype=np.int32)
        self.flat = [group.reshape(-1) for group in self.blocks]
        """Per group, the same entries with index row · width + logical block"""
        self.freed = np.zeros((num_groups, max_sequences), dtype=np.int32)
        """Leading entries of each row that are null again, per group"""
        self.has_windows = False
        self._columns = np.zeros((6, max_sequences), dtype=np.int32)
        self.lengths, self.held, self.computed, self.published, self.promised, self.targets = self._columns
        """`promised`: blocks, over all groups, set aside for the row's growth; `targets`: up to how many in all"""
        self.live = np.zeros(max_sequences, dtype=bool)
        self.contents: list[Content | None] = [None] * max_sequences
        self.promised_total = 0
        self.rows_touched = 0
        """Rows from here on have never held a sequence"""
        self.forks = 0
        """Live rows that were forked or forked from: only then can two rows share a tail block"""
        self.forked = np.zeros(max_sequences, dtype=bool)
        self._seen = np.zeros(max_sequences, dtype=np.int64)
        self._order = np.arange(max_sequences, dtype=np.int64)
        self._free_rows = list(range(max_sequences - 1, -1, -1))

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.block_size)

    def open(self, content: Content, length: int) -> int:
        """A fresh row; its table entries are still null."""
        if not self._free_rows:
            raise InternalError(f"all {len(self.live)} rows of the block tables are taken")
        row = self._free_rows.pop()
        self.rows_touched = max(self.rows_touched, row + 1)
        self.contents[row] = content
        self.live[row] = True
        self.lengths[row] = length
        self.held[row] = self.blocks_for(length)
        return row

    def close(self, row: int) -> Int64s:
        """Forget the row; returns its blocks, tail first and, within one depth, group by group."""
        self.require_live(row)
        blocks = self._take_entries(row, 0)
        self.promised_total -= int(self.promised[row])
        self._columns[:, row] = 0
        if self.has_windows:
            self.freed[:, row] = 0
        self.forks -= int(self.forked[row])
        self.live[row] = self.forked[row] = False
        self.contents[row] = None
        self._free_rows.append(row)
        return blocks

    def cut(self, row: int, length: int) -> Int64s:
        """Shorten the row to `length` tokens; returns the blocks that it no longer needs, tail first."""
        keep = self.blocks_for(length)
        dropped = self._take_entries(row, keep)
        self.lengths[row] = length
        self.held[row] = keep
        self.computed[row] = min(self.computed[row], length)
        self.published[row] = min(self.published[row], length // self.block_size)
        return dropped

    def _take_entries(self, row: int, first: int) -> Int64s:
        """Blocks [first, held) of every group leave the row: tail first, and group by group within one depth."""
        entries = self.blocks[:, row, first : int(self.held[row])]
        taken: Int64s = entries.T.ravel()[::-1].astype(np.int64)
        entries[:] = NULL_BLOCK
        return taken[taken != NULL_BLOCK] if self.has_windows else taken

    def copy_row(self, row: int, content: Content) -> tuple[int, Int64s]:
        """A new row with the same blocks and progress, no promise; returns it and the blocks now shared."""
        twin = self.open(content, int(self.lengths[row]))
        held = int(self.held[row])
        self.blocks[:, twin, :held] = self.blocks[:, row, :held]
        self.freed[:, twin] = self.freed[:, row]
        self.computed[twin] = self.computed[row]
        self.published[twin] = self.published[row]
        for member in (row, twin):
            self.forks += int(not self.forked[member])
            self.forked[member] = True
        shared = self.blocks[:, twin, :held].ravel().astype(np.int64)
        return twin, shared[shared != NULL_BLOCK]

    def take_rows(self, other: BlockTables) -> None:
        """Rows of tables with another block size as far as they are counted in tokens; blocks and promises are still
        to come."""
        self.lengths[:], self.computed[:] = other.lengths, other.computed
        self.live[:], self.forked[:], self.forks = other.live, other.forked, other.forks
        self.contents, self._free_rows = other.contents.copy(), other._free_rows.copy()
        self.rows_touched = other.rows_touched

    def adopt_progress(self, rows: Int64s, parents: Int64s) -> None:
        """Rows that now name their parents' blocks: lengths and progress follow, promises stay."""
        for column in (self.lengths, self.held, self.computed, self.published):
            column[rows] = column[parents]
        self.freed[:, rows] = self.freed[:, parents]

    def promise(self, row: int, target: int, promised: int) -> None:
        self.targets[row] = target
        self.promised[row] = promised
        self.promised_total += promised

    def set_aside(self, row: int, blocks: int) -> None:
        """So many blocks more are promised to the row."""
        self.promised[row] += blocks
        self.promised_total += blocks

    def tail_waste(self) -> int:
        """Slots of one group's tail blocks past the last token; a shared tail counts once, by its fullest owner."""
        rows = self.live.nonzero()[0]
        waste = -self.lengths[rows] % self.block_size
        total = int(waste.sum())
        if self.forks:
            tails = self.blocks[0, rows, np.maximum(self.held[rows] - 1, 0)]
            order = np.lexsort((waste, tails))
            repeated = np.diff(tails[order]) == 0
            total -= int(waste[order][1:][repeated].sum())
        return total

    def require_live(self, row: int) -> None:
        if not 0 <= row < len(self.live) or not self.live[row]:
            raise InternalError(f"row {row} of the block tables holds no sequence")

    def require_distinct(self, rows: Int64s) -> None:
        if len(rows) > len(self.live):
            raise InternalError(f"{len(rows)} rows named, the block tables have {len(self.live)}")
        order = self._order[: len(rows)]
        self._seen[rows] = order
        twice = self._seen.take(rows) != order
        if np.count_nonzero(twice):
            raise InternalError(f"row {int(rows[twice][0])} of the block tables is named twice in one call")

    def slots(self, rows: Int32s, starts: Int32s, counts: Int32s, group: int) -> Int64s:
        """Flat slot ids of tokens [start, start + count) of each row, concatenated."""
        owners, positions = rows.astype(np.int64), starts.astype(np.int64)
        if np.count_nonzero(counts == 1) != len(counts):
            ends = np.cumsum(counts, dtype=np.int64)
            positions = np.repeat(positions - ends + counts, counts)
            positions += np.arange(len(positions))
            owners = np.repeat(owners, counts)
        logical = positions // self.block_size
        if np.count_nonzero(logical >= self.width):
            raise InternalError(f"a slot beyond max_context was asked for (token {int(positions.max())})")
        physical = self.flat[group].take(owners * self.width + logical)
        if np.count_nonzero(physical) != len(physical):
            row = int(owners[physical == NULL_BLOCK][0])
            raise InternalError(f"row {row} has no block for a token whose slot was asked for")
        return positions + (physical - logical) * self.block_size
