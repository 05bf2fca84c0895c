"""Re-blocking a live pool: no token's KV is lost, nothing false is found, and a refusal leaves no trace."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from kvbench.cache.content import Content
from kvbench.cache.manager import make_manager
from kvbench.cache.reblock import commit_reblock, plan_reblock
from kvbench.cache.types import CacheSettings
from kvbench.errors import CannotRunError, InternalError, UsageError
from tests.cache.history import History, Twin, snapshot
from tests.cache.machines import admit, append, ints, paged, run_through, serve
from tests.cache.test_manager_machine import Walk


class ReblockHistory(History):
    """A history in which the block size changes."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.collides = not self.finds_all
        self.finds_all = False
        self.seen: list[tuple[Content, int]] = []

    def compute(self, ends: dict[int, int]) -> None:
        super().compute(ends)
        self.seen += [(self.rows[row].copy(), end) for row, end in ends.items()]

    def _forget_everything(self) -> None:
        super()._forget_everything()
        self.seen = []

    def reblock(self, block_size: int, num_blocks: int) -> bool:
        self.carry_out()
        self.complete()
        found = [self.findable(content) for content, _ in self.seen]
        before = snapshot(self.manager)
        plan = plan_reblock(self.manager, block_size, num_blocks)
        assert snapshot(self.manager) == before
        if not plan.fits:
            with pytest.raises(InternalError, match="refused"):
                commit_reblock(self.manager, plan)
            assert snapshot(self.manager) == before
            return False
        commit_reblock(self.manager, plan)
        self.move(plan)
        self.block_size = self.manager.settings.block_size
        self.twin = Twin(block_size)
        for content, end in self.seen:
            self.twin.publish(content, end)
        tables = self.manager.books.tables
        self.promises = {row: int(tables.promised[row]) for row in self.rows}
        for row, content in self.rows.items():
            self.device.assert_holds(self.manager, row, content, self.progress(row)[0])
        if self.collides or not self.manager.books.pool.free:  # dropped for want of a key or of room
            return True
        for (content, _), tokens in zip(self.seen, found, strict=True):
            assert self.findable(content) >= tokens // block_size * block_size
        return True

    def findable(self, content: Content) -> int:
        return self.manager.plan(content, 0).cached_tokens if content.length else 0

    def move(self, plan: Any) -> None:
        """The device of dictionaries does what the KV store does."""
        old, new, unit = self.block_size, plan.block_size, plan.unit
        moved: dict[int, object] = {}
        for moves in plan.moves:
            for source, at, target, to in zip(*map(np.ndarray.tolist, columns(moves)), strict=True):
                for token in range(unit):
                    moved[target * new + to * unit + token] = self.device.device.get(source * old + at * unit + token)
        self.device.device, self.device.block_size = moved, new


def columns(moves: Any) -> tuple[Any, ...]:
    return (moves.source, moves.source_unit, moves.target, moves.target_unit)


@pytest.mark.parametrize("eviction", ["lru", "fifo"])
@pytest.mark.parametrize("cache", ["none", "hash", "constant", "radix"])
def test_a_random_walk_over_changing_block_sizes_keeps_every_promise(cache: str, eviction: str) -> None:
    """After every change each computed slot holds precisely its token's KV, the books add up, all that was found and
    had room is found again up to whole new blocks, and nothing that was never computed is found."""
    settings = {"hash_function": cache} if cache == "constant" else {"prefix_cache": cache}
    done = 0
    for seed in range(12):
        pick = random.Random(seed)
        size, tokens = pick.choice([1, 2, 4, 8]), pick.randint(16, 64)
        history = ReblockHistory(
            block_size=size, num_blocks=-(-tokens // size), groups=pick.choice([1, 1, 2]), eviction=eviction, **settings
        )
        walk = Walk(history, seed)
        for _ in range(150):
            walk.step()
            if pick.random() < 0.15:
                size = pick.choice([one for one in (1, 2, 4, 8) if one != history.block_size])
                done += history.reblock(size, tokens // size)
                history.check()
        history.finish()
    assert done > 100


def test_joined_and_split_again_everything_is_where_it_was() -> None:
    manager = paged(16, block_size=4)
    run_through(manager, range(16))
    row = serve(manager, range(100, 110))
    for size, blocks, lost in ((8, 8, 0), (4, 16, 0), (2, 32, 0), (4, 16, 2)):
        plan = plan_reblock(manager, size, blocks)
        commit_reblock(manager, plan)
        manager.check_invariants()
        assert manager.settings.block_size == size
        assert manager.plan(Content([*range(16), 9]), 0).cached_tokens == 16
        assert plan.dropped_tokens == lost, "tokens 8 and 9 of the row fill a block of 2, not one of 4"
    assert len(manager.slots(ints(row), ints(0), ints(10))) == 10


def test_what_fills_no_whole_new_block_is_dropped_and_counted() -> None:
    """Three cached blocks of 4 make one of 8; the third is lost."""
    manager = paged(16, block_size=4)
    run_through(manager, range(12))
    plan = plan_reblock(manager, 8, 8)
    assert (plan.kept_tokens, plan.dropped_tokens) == (8, 4)
    commit_reblock(manager, plan)
    assert manager.plan(Content(range(20)), 0).cached_tokens == 8
    assert manager.stats().blocks_cached == 1


def test_branches_of_a_tree_become_blocks_of_their_own() -> None:
    """A shared first block of 4 with two continuations: two blocks of 8, so the shared one is copied twice."""
    manager = paged(16, block_size=4)
    run_through(manager, [*range(4), *range(10, 14)])
    run_through(manager, [*range(4), *range(20, 24)])
    plan = plan_reblock(manager, 8, 8)
    commit_reblock(manager, plan)
    assert (plan.kept_tokens, plan.dropped_tokens, len(plan.moves[0])) == (12, 0, 4)
    for second in (10, 20):
        assert manager.plan(Content([*range(4), *range(second, second + 4), 0]), 0).cached_tokens == 8


def test_rows_that_share_a_prefix_share_it_afterwards() -> None:
    """8 shared tokens and 2 of its own each: at 8 tokens a block 1 + 1 + 1 blocks, at 16 one each."""
    manager = paged(16, block_size=4)
    rows = [serve(manager, [*range(8), 50 + at, 60 + at]) for at in range(2)]
    commit_reblock(manager, plan_reblock(manager, 8, 8))
    assert manager.stats().blocks_used == 3
    tables = [manager.table(ints(row), 2)[0].tolist() for row in rows]
    assert tables[0][0] == tables[1][0]
    assert tables[0][1] != tables[1][1]
    commit_reblock(manager, plan_reblock(manager, 16, 4))
    assert manager.stats().blocks_used == 2
    manager.check_invariants()


def test_the_least_recently_used_go_when_room_is_short() -> None:
    manager = paged(8, block_size=4)
    for first in (0, 100, 200):
        run_through(manager, range(first, first + 8))
    plan = plan_reblock(manager, 8, 2)
    assert (plan.kept_tokens, plan.dropped_tokens) == (16, 8)
    commit_reblock(manager, plan)
    found = [manager.plan(Content([*range(first, first + 8), 7]), 0).cached_tokens for first in (0, 100, 200)]
    assert found == [0, 8, 8]
    run_through(manager, [1, 2, 3])
    assert manager.plan(Content([*range(100, 108), 7]), 0).cached_tokens == 0, "the older of the two is evicted first"
    assert manager.plan(Content([*range(200, 208), 7]), 0).cached_tokens == 8


def test_rows_that_do_not_fit_are_refused_with_what_is_missing() -> None:
    """Four rows of 3 tokens fit four blocks of 4 and not two of 8."""
    manager = paged(4, block_size=4)
    for first in range(4):
        serve(manager, range(first * 10, first * 10 + 3))
    before = snapshot(manager)
    plan = plan_reblock(manager, 8, 2)
    assert (plan.fits, plan.shortfall_blocks) == (False, 2)
    with pytest.raises(InternalError, match="refused"):
        commit_reblock(manager, plan)
    assert snapshot(manager) == before


def test_a_promise_covers_the_same_tokens() -> None:
    """A row of 6 tokens with a promise up to 30, from blocks of 16 to blocks of 4 and back."""
    manager = paged(4, block_size=16)
    admission = admit(manager, Content(range(6)), promise_tokens=30)
    manager.mark_computed(ints(admission.row), ints(6))
    commit_reblock(manager, plan_reblock(manager, 4, 16))
    assert manager.stats().reserved_slots == 24
    manager.check_invariants()
    commit_reblock(manager, plan_reblock(manager, 16, 4))
    assert manager.stats().reserved_slots == 16
    append(manager, admission.row, 30)
    manager.check_invariants()


def test_the_listener_hears_of_every_key() -> None:
    manager, keys = paged(16, block_size=4), set()

    def hear(event: str, key: bytes) -> None:
        keys.add(key) if event == "stored" else keys.remove(key)

    manager.listener = hear
    run_through(manager, range(13))
    commit_reblock(manager, plan_reblock(manager, 8, 8))
    assert keys == set(manager.books.indexes[0].blocks)
    assert len(keys) == 1


def test_a_stale_plan_is_refused() -> None:
    manager = paged(8)
    plan = plan_reblock(manager, 8, 4)
    serve(manager, range(3))
    with pytest.raises(InternalError, match="stale"):
        commit_reblock(manager, plan)


@pytest.mark.parametrize(("old", "new"), [(4, 6), (4, 0), (16, 24), (3, 2), (4, -4)])
def test_block_sizes_of_which_none_is_a_multiple_of_the_other_are_refused(old: int, new: int) -> None:
    with pytest.raises(UsageError, match=f"blocks of {old} tokens cannot become blocks of {new}"):
        plan_reblock(paged(8, block_size=old), new, 8)


def test_what_cannot_be_cut_anew_says_why() -> None:
    contiguous = make_manager(
        CacheSettings(block_size=4, num_blocks=32, max_sequences=2, max_context=32, allocator="contiguous")
    )
    with pytest.raises(CannotRunError, match="only a paged pool"):
        plan_reblock(contiguous, 8, 16)
    with pytest.raises(CannotRunError, match="host tier"):
        plan_reblock(paged(8, host_blocks=2), 8, 4)
    with pytest.raises(CannotRunError, match="holds no block"):
        plan_reblock(paged(8), 64, 0)
    manager = paged(8)
    row = serve(manager, range(6))
    manager.fork(row, Content(range(6)))
    append(manager, row, 7)
    with pytest.raises(InternalError, match="under way"):
        plan_reblock(manager, 8, 4)
