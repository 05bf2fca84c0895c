"""The contiguous baseline, and its free extents against a plain bitmap."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.cache.content import Content
from kvbench.cache.extents import Extents
from kvbench.cache.manager import make_manager
from kvbench.cache.types import CacheGroup, CacheSettings
from kvbench.errors import CannotRunError, InternalError
from tests.cache.machines import Device, ints


def contiguous(num_blocks: int, groups: int = 1, **changes: Any) -> Any:
    given_settings = {"block_size": 4, "num_blocks": num_blocks, "max_sequences": 8, "max_context": 16}
    return make_manager(
        CacheSettings(**{**given_settings, "allocator": "contiguous", "groups": (CacheGroup(),) * groups, **changes})
    )


def admit(manager: Any, length: int, hold: int | None = None) -> int | None:
    plan = manager.plan(Content(range(length)), length if hold is None else hold)
    return manager.commit(plan).row if plan.fits else None


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 5)), max_size=60))
def test_extents_are_first_fit_and_never_touch(moves: list[tuple[bool, int]]) -> None:
    extents, bitmap, live = Extents(12), [True] * 12, []
    for take, count in moves:
        if take:
            runs = [at for at in range(13 - count) if all(bitmap[at : at + count])]
            assert (extents.find(count) is not None) == bool(runs)
            if runs:
                start = extents.allocate(count)
                assert start == runs[0] + 1
                bitmap[start - 1 : start - 1 + count] = [False] * count
                live.append((start, count))
        elif live:
            start, size = live.pop(count % len(live))
            extents.free(start, size)
            bitmap[start - 1 : start - 1 + size] = [True] * size
        pieces = list(extents.items())
        assert extents.total == sum(bitmap) == sum(size for _, size in pieces)
        assert all(before[0] + before[1] < after[0] for before, after in pairwise(pieces))
        assert all(all(bitmap[start - 1 : start - 1 + size]) for start, size in pieces)


def test_a_piece_cannot_be_freed_twice() -> None:
    extents = Extents(8)
    assert extents.allocate(3) == 1
    extents.free(1, 3)
    with pytest.raises(InternalError, match="block 1 is freed twice"):
        extents.free(1, 3)
    with pytest.raises(InternalError, match="no piece of 9"):
        extents.allocate(9)


def test_every_sequence_reserves_the_maximum_in_adjacent_blocks() -> None:
    """Pool 10, max_context 16 = 4 blocks: two fit, and the last two blocks serve nobody."""
    manager = contiguous(10)
    rows = [admit(manager, 5), admit(manager, 16)]
    assert admit(manager, 1) is None
    assert manager.table(ints(*rows), 4).tolist() == [[1, 2, 0, 0], [5, 6, 7, 8]]
    stats = manager.stats()
    assert (stats.blocks_used, stats.blocks_free, stats.external_blocks) == (8, 2, 2)
    assert (stats.internal_slots, stats.reserved_slots) == (3, 8)
    manager.check_invariants()


def test_waste_is_what_the_definitions_say() -> None:
    """Slots of a reservation = tokens + internal + reserved, at every length."""
    for length in range(1, 17):
        manager = contiguous(4)
        admit(manager, length)
        stats = manager.stats()
        assert length + stats.internal_slots + stats.reserved_slots == 16
        assert stats.internal_slots == -length % 4


def test_e27_exactly_fitting_fits_and_e26_what_cannot_is_known() -> None:
    assert contiguous(4).can_ever_fit(16)
    assert not contiguous(3).can_ever_fit(1)
    assert not contiguous(8).can_ever_fit(17)
    assert contiguous(8, groups=2).can_ever_fit(16)
    assert not contiguous(7, groups=2).can_ever_fit(1)


def test_growth_never_needs_a_block_and_slots_are_adjacent() -> None:
    manager, device = contiguous(8, groups=2), Device(4, 2)
    content = Content(range(3), capacity=16)
    row = manager.commit(manager.plan(content, 3)).row
    for length in range(4, 17):
        content.append(length)
        plan = manager.plan_append(ints(row), ints(length))
        assert (plan.fits, plan.new_blocks) == (True, 0)
        manager.commit_append(plan)
        device.write(manager, row, content, 0, length)
        device.assert_holds(manager, row, content, length)
        manager.mark_computed(ints(row), ints(length))
        manager.check_invariants()
    for group in range(2):
        assert np.diff(manager.slots(ints(row), ints(0), ints(16), group)).tolist() == [1] * 15
    manager.truncate(row, 6)
    manager.check_invariants()
    manager.release(row)
    assert manager.stats().blocks_free == 8


def test_random_histories_keep_the_books() -> None:
    for seed in range(20):
        pick = random.Random(seed)
        manager = contiguous(pick.randint(4, 30))
        lengths: dict[int, int] = {}
        for _ in range(150):
            length = pick.randint(1, 16)
            if pick.random() < 0.4 and len(lengths) < 8:
                row = admit(manager, length)
                assert (row is None) == (len(lengths) == manager.settings.num_blocks // 4)
                if row is not None:
                    lengths[row] = length
            elif lengths and pick.random() < 0.5:
                row = pick.choice(sorted(lengths))
                manager.release(row)
                del lengths[row]
            elif lengths:
                new = {row: pick.randint(old, 16) for row, old in lengths.items()}
                manager.commit_append(manager.plan_append(ints(*new), ints(*new.values())))
                lengths = new
            manager.check_invariants()
            stats = manager.stats()
            assert sum(lengths.values()) + stats.internal_slots + stats.reserved_slots == stats.blocks_used * 4


def test_what_needs_sharing_is_refused_with_a_way_out() -> None:
    for changes in ({"prefix_cache": "hash"}, {"prefix_cache": "hash", "host_blocks": 3}):
        with pytest.raises(CannotRunError) as raised:
            contiguous(8, **changes)
        assert "prefix_cache" in str(raised.value.hint)
    manager = contiguous(8)
    row = admit(manager, 3)
    with pytest.raises(CannotRunError, match="forked"):
        manager.fork(row, Content(range(3)))


def test_stale_and_refused_plans_are_not_committed() -> None:
    manager = contiguous(4)
    plan = manager.plan(Content(range(3)), 3)
    row = manager.commit(plan).row
    with pytest.raises(InternalError, match="stale"):
        manager.commit(plan)
    refused = manager.plan(Content(range(3)), 3)
    assert (refused.fits, refused.shortfall_blocks) == (False, 4)
    with pytest.raises(InternalError, match="refused"):
        manager.commit(refused)
    with pytest.raises(InternalError, match="live"):
        manager.reset()
    manager.release(row)
    manager.reset()
    manager.check_invariants()
