"""Deliberate damage to the books and to the memory, which must be noticed, and is then undone.

Each kind names one thing that a bug, or a stray write, could do between two steps. A kind that finds nothing to damage
returns None.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from kvbench.errors import InternalError
from kvbench.verify.inside import pool_of, tables_of

if TYPE_CHECKING:
    import random

    from kvbench.verify.watch import Watch

Undo = Callable[[], None]
Damage = Callable[["Watch", "random.Random"], Undo | None]


def corrupt_and_detect(watch: Watch, rng: random.Random) -> str | None:
    """One piece of damage; the name of its kind when nobody noticed, None when it was noticed (or impossible)."""
    name = rng.choice(sorted(KINDS))
    undo = KINDS[name](watch, rng)
    if undo is None:
        return None
    try:
        watch.manager.check_invariants()
        watch.check_rows()
    except (InternalError, IndexError):
        return None
    finally:
        undo()
    return name


def _table_entry(watch: Watch, rng: random.Random) -> Undo | None:
    """A row's table names another block."""
    tables = tables_of(watch.manager)
    rows = [row for row in np.flatnonzero(tables.live).tolist() if tables.computed[row]]
    if not rows:
        return None
    row, group = rng.choice(rows), rng.randrange(len(tables.blocks))
    entries = np.flatnonzero(tables.blocks[group, row])
    if not len(entries):
        return None
    place = (group, row, int(rng.choice(entries.tolist())))
    return _put(tables.blocks, place, 1 + int(tables.blocks[place]) % watch.device.num_blocks)


def _ref_count(watch: Watch, rng: random.Random) -> Undo | None:
    """A block has one owner too many, or too few."""
    pool = pool_of(watch.manager)
    if pool is None:
        return None
    block = rng.randint(1, watch.device.num_blocks)
    return _put(pool.refs, block, int(pool.refs[block]) + rng.choice([-1, 1]))


def _free_stack(watch: Watch, rng: random.Random) -> Undo | None:
    """A block stands in the free list twice, or a used one does."""
    pool = pool_of(watch.manager)
    if pool is None or not pool.free or watch.device.num_blocks < 2:
        return None
    at = rng.randrange(pool.free)
    return _put(pool.free_stack, at, 1 + int(pool.free_stack[at]) % watch.device.num_blocks)


def _state(watch: Watch, rng: random.Random) -> Undo | None:
    """A block is in another state than its counts say."""
    pool = pool_of(watch.manager)
    if pool is None:
        return None
    block = rng.randint(1, watch.device.num_blocks)
    return _put(pool.state, block, (int(pool.state[block]) + 1) % 4)


def _length(watch: Watch, rng: random.Random) -> Undo | None:
    """A row claims more computed tokens than it has slots."""
    tables = tables_of(watch.manager)
    rows = np.flatnonzero(tables.live).tolist()
    if not rows:
        return None
    row = rng.choice(rows)
    return _put(tables.computed, row, int(tables.lengths[row]) + 1)


def _content(watch: Watch, rng: random.Random) -> Undo | None:
    """A block that holds nothing is published, or a published one is not."""
    pool = pool_of(watch.manager)
    if pool is None:
        return None
    block = rng.randint(1, watch.device.num_blocks)
    return _put(pool.content_ids, block, 0 if pool.content_ids[block] else 1 << 40)


def _memory(watch: Watch, rng: random.Random) -> Undo | None:
    """One bit of stored KV flips."""
    tables = tables_of(watch.manager)
    rows = [row for row in np.flatnonzero(tables.live).tolist() if tables.computed[row]]
    if not rows:
        return None
    row = rng.choice(rows)
    at = int(tables.computed[row]) - 1
    group = rng.randrange(len(tables.blocks))
    block = int(tables.blocks[group, row, at // watch.device.block_size])
    pool = pool_of(watch.manager)
    if not block or (pool is not None and pool.pins[block]):
        return None
    place = (block, at % watch.device.block_size)
    return _put(watch.device.links, place, int(watch.device.links[place]) ^ (1 << rng.randrange(64)))


KINDS: dict[str, Damage] = {
    "table entry": _table_entry,
    "ref count": _ref_count,
    "free list": _free_stack,
    "block state": _state,
    "computed length": _length,
    "published content": _content,
    "stored bit": _memory,
}


def _put(array: Any, place: Any, value: int) -> Undo:
    before = array[place].item()
    array[place] = value

    def undo() -> None:
        array[place] = before

    return undo
