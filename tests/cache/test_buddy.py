"""The buddy system against a bitmap, and its reservations behind the manager's door."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.cache.buddy import BuddyExtents
from kvbench.cache.content import Content
from kvbench.cache.manager import make_manager
from kvbench.cache.reservations import largest_piece, reserved_slots
from kvbench.cache.types import CacheGroup, CacheSettings
from kvbench.errors import InternalError
from tests.cache.machines import Device, ints


def whole_pieces(bitmap: list[bool]) -> dict[int, int]:
    """Offset → size of the largest free pieces of 2^k that start at a multiple of their size: what complete
    coalescing leaves."""
    pieces: dict[int, int] = {}
    size = 1 << len(bitmap).bit_length()
    while size:
        for offset in range(0, len(bitmap) - size + 1, size):
            inside = any(at <= offset < at + piece for at, piece in pieces.items())
            if not inside and all(bitmap[offset : offset + size]):
                pieces[offset] = size
        size //= 2
    return pieces


@given(st.integers(1, 37), st.lists(st.tuples(st.booleans(), st.integers(1, 12)), max_size=50))
def test_the_buddy_system_is_the_bitmap_cut_into_its_largest_aligned_pieces(
    blocks: int, moves: list[tuple[bool, int]]
) -> None:
    """Every allocation takes the lowest of the smallest pieces that suffice, every free coalesces completely."""
    buddy, bitmap, live = BuddyExtents(blocks), [True] * blocks, list[tuple[int, int]]()
    for take, count in moves:
        pieces = whole_pieces(bitmap)
        size = buddy.taken_for(count)
        if take:
            enough = sorted((piece, offset) for offset, piece in pieces.items() if piece >= size)
            assert (buddy.largest() >= size) == bool(enough)
            if enough:
                assert buddy.allocate(count) == enough[0][1] + 1
                offset = enough[0][1]
                bitmap[offset : offset + size] = [False] * size
                live.append((offset, count))
        elif live:
            offset, count = live.pop(count % len(live))
            buddy.free(offset + 1, count)
            size = buddy.taken_for(count)
            bitmap[offset : offset + size] = [True] * size
        assert {start - 1: piece for start, piece in buddy.items()} == whole_pieces(bitmap)
        assert buddy.total == sum(bitmap)
        assert buddy.smaller_than(4) == sum(piece for piece in whole_pieces(bitmap).values() if piece < 4)


@pytest.mark.parametrize("blocks", [1, 8, 10, 37])
def test_everything_coalesces_when_everything_is_released(blocks: int) -> None:
    for seed in range(20):
        pick, buddy, live = random.Random(seed), BuddyExtents(blocks), list[tuple[int, int]]()
        while buddy.largest():
            count = pick.randint(1, buddy.largest())
            live.append((buddy.allocate(count), count))
        pick.shuffle(live)
        for start, count in live:
            buddy.free(start, count)
        assert list(buddy.items()) == list(BuddyExtents(blocks).items())


def test_a_piece_cannot_be_freed_twice() -> None:
    buddy = BuddyExtents(8)
    assert (buddy.allocate(3), buddy.allocate(1)) == (1, 5)
    buddy.free(1, 3)
    with pytest.raises(InternalError, match="block 1 is freed twice"):
        buddy.free(1, 3)
    with pytest.raises(InternalError, match="freed twice"):
        buddy.free(1, 8)
    with pytest.raises(InternalError, match="no piece of 5"):
        buddy.allocate(5)


def test_reservations_are_those_of_the_literature() -> None:
    """Kwon et al. 2023 §6.1: an output of 25 tokens reserves 32 under pow2, itself under oracle."""
    assert reserved_slots("pow2", 100, 100 + 25 - 1, 2048) == 132
    assert reserved_slots("oracle", 100, 100 + 25 - 1, 2048) == 124
    assert reserved_slots("max", 100, 124, 2048) == 2048
    assert reserved_slots("pow2", 2000, 2040, 2048) == 2048
    assert [reserved_slots("pow2", 1, output, 99) - 1 for output in range(1, 10)] == [1, 2, 4, 4, 8, 8, 8, 8, 16]
    assert (largest_piece("buddy", 37), largest_piece("contiguous", 37), largest_piece("buddy", 0)) == (32, 37, 0)


def reserving(allocator: str, reservation: str, num_blocks: int = 40, groups: int = 1) -> Any:
    return make_manager(
        CacheSettings(
            block_size=4, num_blocks=num_blocks, max_sequences=8, max_context=40, allocator=allocator,
            reservation=reservation, groups=(CacheGroup(),) * groups,
        )
    )  # fmt: skip


def admit(manager: Any, prompt: int, slots: int) -> int | None:
    plan = manager.plan(Content(range(prompt)), prompt, slots)
    return manager.commit(plan).row if plan.fits else None


def test_waste_by_hand() -> None:
    """Blocks of 4. A prompt of 6 with an output of 11 needs 16 slots: oracle reserves 4 blocks, pow2 6 + 16 = 22 slots,
    so 6 blocks, and a buddy gives 8 for those."""
    found = {}
    for allocator in ("contiguous", "buddy"):
        for reservation in ("max", "pow2", "oracle"):
            manager = reserving(allocator, reservation)
            assert admit(manager, 6, 16) == 0
            stats = manager.stats()
            found[allocator, reservation] = (stats.blocks_used, stats.internal_slots, stats.reserved_slots)
            manager.check_invariants()
    assert found == {
        ("contiguous", "max"): (10, 2, 32),
        ("contiguous", "pow2"): (6, 2, 16),
        ("contiguous", "oracle"): (4, 2, 8),
        ("buddy", "max"): (16, 2 + 24, 32),
        ("buddy", "pow2"): (8, 2 + 8, 16),
        ("buddy", "oracle"): (4, 2, 8),
    }


def test_external_waste_is_what_the_next_in_line_cannot_use() -> None:
    """Buddy, 8 blocks: 1, 1 and 4 are taken, then the first is given back. Pieces of 1 and 2 are left, and a request
    for 4 finds all 3 blocks useless, one for 2 finds 1 useless."""
    manager = reserving("buddy", "oracle", num_blocks=8)
    first = admit(manager, 3, 4)
    assert admit(manager, 3, 4) is not None
    assert admit(manager, 3, 16) is not None
    manager.release(first)
    assert admit(manager, 3, 16) is None
    assert manager.stats().external_blocks == 3
    manager.plan(Content(range(3)), 3, 8)
    assert manager.stats().external_blocks == 1


def test_pow2_never_asks_for_more_than_an_empty_pool_has() -> None:
    """20 slots fit into 5 blocks, 12 + 16 = 28 do not: it is cut to the pool instead of waiting for ever."""
    manager = reserving("contiguous", "pow2", num_blocks=5)
    assert manager.can_ever_fit(20)
    assert not manager.can_ever_fit(21)
    assert admit(manager, 12, 20) == 0
    buddy = reserving("buddy", "pow2", num_blocks=7)
    assert buddy.can_ever_fit(16)
    assert not buddy.can_ever_fit(17)
    assert admit(buddy, 7, 16) == 0
    assert buddy.stats().blocks_used == 4


@pytest.mark.parametrize("allocator", ["contiguous", "buddy"])
@pytest.mark.parametrize("reservation", ["max", "pow2", "oracle"])
def test_random_histories_keep_the_books(allocator: str, reservation: str) -> None:
    """tokens + internal + reserved = slots of all pieces, tables hold what was written, and at the end all is free."""
    for seed in range(10):
        pick = random.Random(seed)
        manager, device = reserving(allocator, reservation, pick.randint(32, 70), groups=2), Device(4, 2)
        live: dict[int, tuple[Content, int]] = {}
        for _ in range(60):
            if pick.random() < 0.5 and len(live) < 8:
                prompt = pick.randint(1, 20)
                slots = pick.randint(prompt, 40)
                content = Content(range(prompt), capacity=40)
                plan = manager.plan(content, prompt, slots)
                if plan.fits:
                    row = manager.commit(plan).row
                    device.write(manager, row, content, 0, prompt)
                    live[row] = (content, slots)
            elif live and pick.random() < 0.4:
                row = pick.choice(sorted(live))
                manager.release(row)
                del live[row]
            for row, (content, slots) in live.items():
                if content.length < slots and pick.random() < 0.7:
                    content.append(pick.randrange(9))
                    manager.commit_append(manager.plan_append(ints(row), ints(content.length)))
                    device.write(manager, row, content, content.length - 1, content.length)
                device.assert_holds(manager, row, content, content.length)
            manager.check_invariants()
            stats = manager.stats()
            tokens = 2 * sum(content.length for content, _ in live.values())
            assert tokens + stats.internal_slots + stats.reserved_slots == 4 * stats.blocks_used
        for row in live:
            manager.release(row)
        assert manager.stats().blocks_free == manager.settings.num_blocks
        assert list(manager.extents.items()) == list(type(manager.extents)(manager.settings.num_blocks).items())


def test_growth_beyond_a_reservation_does_not_fit() -> None:
    manager = reserving("contiguous", "oracle")
    row = admit(manager, 6, 8)
    plan = manager.plan_append(ints(row), ints(9))
    assert (plan.fits, plan.shortfall_blocks) == (False, 1)
    with pytest.raises(InternalError, match="refused"):
        manager.commit_append(plan)


@pytest.mark.parametrize("column", ["lengths", "held", "computed"])
def test_a_row_whose_counts_part_from_each_other_is_named(column: str) -> None:
    for change in (1, -1):
        manager = reserving("buddy", "oracle")
        row = admit(manager, 8, 9)
        manager.mark_computed(ints(row), ints(8))
        getattr(manager.tables, column)[row] += change
        if (column, change) == ("computed", -1):
            manager.check_invariants()
            continue
        with pytest.raises(InternalError, match="row 0"):
            manager.check_invariants()
