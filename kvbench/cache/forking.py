"""Rows that share blocks: parallel samples fork from one prompt, beams are dealt anew after every step.

Nothing is copied here. A block that several rows name is copied when one of them writes into it (growth.py), and the
last owner writes in place (E81).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvbench.cache.types import NULL_BLOCK, Int32s, Int64s
from kvbench.cache.windows import Windows, most_blocks
from kvbench.errors import InternalError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvbench.cache.books import Books
    from kvbench.cache.content import Content
    from kvbench.cache.types import CacheSettings


def fork_blocks(books: Books, length: int, promise: int) -> int:
    """See `CacheManager.fork_blocks`."""
    return _fork_need(books.block_size, books.num_groups, books.windows, length, promise)


def request_blocks(settings: CacheSettings, width: int, prompt_tokens: int, slots: int) -> int:
    """Blocks that a request may come to hold as `width` sequences of `slots` tokens, forked after its prompt: what the
    scheduler rejects it by, and the plan of a sweep before that."""
    size, groups = settings.block_size, len(settings.groups)
    windows = Windows(settings) if any(group.window is not None for group in settings.groups) else None
    forked = (width - 1) * _fork_need(size, groups, windows, prompt_tokens, slots)
    return most_blocks(settings, slots) + forked


def _fork_need(block_size: int, groups: int, windows: Windows | None, length: int, promise: int) -> int:
    held, promised = -(-length // block_size), -(-promise // block_size)
    has_partial_tail = length % block_size > 0
    growth = groups * max(0, promised - held) if windows is None else windows.fork_need(held, promised, length)
    return growth + groups * has_partial_tail


def fork_row(books: Books, row: int, content: Content, promise: int) -> int:
    """See `CacheManager.fork`."""
    tables = books.tables
    tables.require_live(row)
    if tables.computed[row] < tables.lengths[row]:
        raise InternalError(f"row {row} has slots that are not computed yet: fork it after its step")
    _require_continuation(books, row, content)
    twin, shared = tables.copy_row(row, content)
    books.pool.refs[shared[shared != NULL_BLOCK]] += 1
    own = max(0, int(tables.targets[row]) - books.num_groups * int(tables.held[row]))
    if books.windows is not None:
        own = books.windows.to_promise_row(tables, row)
    given = min(max(0, int(tables.promised[row]) - own), fork_blocks(books, int(tables.lengths[row]), promise))
    tables.promised[row] -= given
    tables.promised[twin] = given
    tables.targets[twin] = books.num_groups * tables.blocks_for(promise)
    if books.windows is not None:
        books.windows.for_forks[row] -= given
        books.windows.open(twin, 0)
        tables.promised_total -= given
        tables.promised[twin] = 0
        _set_aside(books, twin, given)
    return twin


def reorder_rows(books: Books, rows: Int32s, parents: Int32s, contents: Sequence[Content]) -> None:
    """See `CacheManager.reorder`."""
    tables = books.tables
    at = rows.astype(np.int64)
    tables.require_distinct(at)
    for row, parent, content in zip(rows.tolist(), rows[parents].tolist(), contents, strict=True):
        tables.require_live(row)
        if tables.computed[parent] < tables.lengths[parent]:
            raise InternalError(f"row {parent} has slots that are not computed yet: reorder it after its step")
        _require_continuation(books, parent, content)
    moved = (parents != np.arange(len(rows))).nonzero()[0]
    if len(moved):
        _deal(books, at[moved], at[parents[moved]])
    for row, content in zip(rows.tolist(), contents, strict=True):
        tables.contents[row] = content


def _deal(books: Books, rows: Int64s, parents: Int64s) -> None:
    """Each of these rows gives up its blocks and takes those of its parent; all at once, so a parent may be among
    the rows."""
    tables = books.tables
    old = tables.blocks[:, rows].astype(np.int64)
    new = tables.blocks[:, parents].astype(np.int64)
    np.add.at(books.pool.refs, new[new != NULL_BLOCK], 1)
    tables.blocks[:, rows] = new
    tables.adopt_progress(rows, parents)
    for index, row in enumerate(rows.tolist()):
        given_up = old[:, index].T.ravel()[::-1]
        supply = books.supply()
        books.drop_or_park(given_up[given_up != NULL_BLOCK])
        if tables.targets[row] >= books.num_groups * tables.held[row]:
            # The row's promise was for blocks of its own: what it shares now, it may have to copy later.
            _set_aside(books, row, books.supply() - supply)


def _set_aside(books: Books, row: int, blocks: int) -> None:
    """So many blocks of the supply are the row's: claims on the window blocks that it shares, the rest a promise."""
    if books.windows is not None:
        shared = books.windows.blocks_of(books.tables, row)
        shared = shared[books.claims.take(shared) < books.pool.refs.take(shared) - 1][:blocks]
        books.claim(shared)
        blocks -= len(shared)
    books.tables.set_aside(row, blocks)


def _require_continuation(books: Books, row: int, content: Content) -> None:
    """The content must begin with the tokens whose KV the row holds."""
    own, computed = books.tables.contents[row], int(books.tables.computed[row])
    if content is not own and (own is None or not np.array_equal(content.tokens[:computed], own.tokens[:computed])):
        raise InternalError(f"a fork of row {row} must continue its {computed} computed tokens")
