"""The pool and the tables by themselves: states, and errors that name the block or the row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.cache.content import Content
from kvbench.cache.pool import BlockPool
from kvbench.cache.tier import Stored
from kvbench.errors import InternalError
from tests.cache.machines import admit, append, ints, paged, run_through, serve


def blocks(*ids: int) -> np.ndarray:
    return np.array(ids, dtype=np.int64)


def test_blocks_are_handed_out_once_and_come_back() -> None:
    pool = BlockPool(5)
    first, second = pool.allocate(3), pool.allocate(2)
    assert sorted([*first.tolist(), *second.tolist()]) == [1, 2, 3, 4, 5]
    assert pool.used == 5
    assert len(pool.release(first)) == 0
    assert (pool.free, pool.used) == (3, 2)


@pytest.mark.parametrize(
    ("released", "named"),
    [
        (blocks(4), "block 4 .free. is released but nobody owns it"),
        (blocks(0), "block 0 .null. is released"),
        (blocks(1, 9), "block 9 is not one of this pool's 1 … 5"),
        (blocks(-1), "block -1 is not one of"),
        (blocks(2, 1, 2), "block 2 is released twice"),
    ],
)
def test_a_wrong_release_names_the_block_and_changes_nothing(released: np.ndarray, named: str) -> None:
    pool = BlockPool(5)
    assert pool.allocate(3).tolist() == [1, 2, 3]
    with pytest.raises(InternalError, match=named):
        pool.release(released)
    assert (pool.free, pool.used, pool.refs.sum()) == (2, 3, 3)


def test_an_empty_pool_refuses_and_says_how_much_is_free() -> None:
    pool = BlockPool(2)
    with pytest.raises(InternalError, match="3 blocks wanted, 2 of 2"):
        pool.allocate(3)


def test_a_used_block_cannot_be_evicted_nor_a_free_one_pinned() -> None:
    pool = BlockPool(2)
    block = pool.allocate(1)
    with pytest.raises(InternalError, match=r"block 1 .used."):
        pool.evict(block)
    with pytest.raises(InternalError, match=r"block 2 .free."):
        pool.pin(2)
    with pytest.raises(InternalError, match=r"block 1 .used. is not part"):
        pool.unpin(1)


@given(st.data())
def test_slots_are_those_of_a_loop_over_the_table(data: st.DataObject) -> None:
    manager = paged(40, block_size=3, prefix_cache="none")
    lengths = data.draw(st.lists(st.integers(1, 12), min_size=1, max_size=5))
    rows = [admit(manager, range(length)).row for length in lengths]
    starts = [data.draw(st.integers(0, length)) for length in lengths]
    counts = [data.draw(st.integers(0, length - start)) for length, start in zip(lengths, starts, strict=True)]
    expected = []
    for row, start, count in zip(rows, starts, counts, strict=True):
        table = manager.table(ints(row), 4)[0]
        expected += [int(table[position // 3]) * 3 + position % 3 for position in range(start, start + count)]
    assert manager.slots(ints(*rows), ints(*starts), ints(*counts)).tolist() == expected


def test_a_slot_without_a_block_is_an_error_that_names_the_row() -> None:
    manager = paged(4, max_context=16)
    row = admit(manager, range(5)).row
    with pytest.raises(InternalError, match=f"row {row} has no block"):
        manager.slots(ints(row), ints(8), ints(1))
    with pytest.raises(InternalError, match="beyond max_context"):
        manager.slots(ints(row), ints(16), ints(1))


def two_writers(books: Any) -> None:
    """The fork writes into the block of the row it came from; its own goes back properly."""
    own = books.tables.blocks[0, 1, 2]
    books.tables.blocks[0, 1, 2] = 3
    books.pool.refs[3] = 2
    books.pool.release(blocks(own))


BREAKS: dict[str, tuple[Callable[[Any], object], str]] = {
    "a count too high": (lambda b: b.pool.refs.__setitem__(1, 3), "block 1 has 2 owners and ref count 3"),
    "a count gone": (lambda b: b.pool.refs.__setitem__(3, 0), "block 3: owners and state disagree"),
    "an owner lost": (lambda b: b.tables.blocks.__setitem__((0, 0, 0), 0), "block 1 has 1 owners and ref count 2"),
    "two owners of one writable block": (two_writers, "row 0 writes into block 3, which is shared"),
    "a free block counted twice": (lambda b: setattr(b.pool, "free", b.pool.free + 1), "counted as"),
    "a free block in use": (lambda b: b.pool.state.__setitem__(12, 2), "counted as"),
    "a promise out of nothing": (lambda b: setattr(b.tables, "promised_total", 3), "promises sum to 0, counted as 3"),
    "a token too many": (lambda b: b.tables.computed.__setitem__(0, 13), "row 0 computed more"),
    "a length that its blocks do not have": (lambda b: b.tables.lengths.__setitem__(0, 13), "row 0 holds"),
    "a block beyond the end": (lambda b: b.tables.held.__setitem__(0, 2), "row 0: its entries"),
    "an unpublished block in the index": (lambda b: b.pool.content_ids.__setitem__(1, 0), "block 1 is indexed"),
    "a key that names another block": (lambda b: b.labels.keys.__setitem__(1, b"other"), "block 1 is indexed"),
    "a parent that is gone": (lambda b: b.labels.parent_ids.__setitem__(2, 99), "block 2 is published but"),
    "a pin that no copy holds": (lambda b: b.pool.pins.__setitem__(1, 1), "block 1: "),
    "a copy without a pin": (lambda b: b.pending.copy_source.append(1), "block 1 has 1 pending copies and 0 pins"),
    "two copies to one place": (lambda b: b.pending.copy_destination.extend([3, 3]), "block 3 has 2 pending"),
    "a victim that is not cached": (lambda b: b.policy.add(blocks(1)), "the eviction policy offers"),
    "a host block that names nothing": (
        lambda b: b.below.host.stored.__setitem__(0, Stored((0, b"x"), b"", 1, 0)),
        "the host index",
    ),
    "a host block lost": (lambda b: b.below.host.free.pop(), "host tier"),
}


@pytest.mark.parametrize("name", sorted(BREAKS))
def test_the_invariants_notice(name: str) -> None:
    """Row 0 with blocks 1, 2, 3, of which its fork, row 1, shares the first two; both about to write; cached rows."""
    manager = paged(12, host_blocks=9)
    content = Content(range(11))
    row = serve(manager, content)
    twin = manager.fork(row, content.copy())
    append(manager, twin, 12)
    append(manager, row, 12)
    run_through(manager, range(50, 59))
    run_through(manager, range(60, 89))
    assert (row, twin) == (0, 1)
    assert manager.table(ints(row, twin), 3)[:, :2].tolist() == [[1, 2], [1, 2]]
    assert manager.stats().host_blocks_used == 2
    wreck, message = BREAKS[name]
    wreck(manager.books)
    with pytest.raises(InternalError, match=message):
        manager.check_invariants()
