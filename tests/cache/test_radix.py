"""The tree beside the chain of digests, and the cases that are about trees. Block size 4 unless said otherwise."""

from __future__ import annotations

import random
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings

from kvbench.cache.content import Content
from kvbench.cache.pool import CACHED, USED
from kvbench.errors import InternalError
from tests.cache.history import History
from tests.cache.machines import Device, admit, append, ints, paged, run_through, serve
from tests.cache.test_manager_machine import Walk


def radix(num_blocks: int, **changes: Any) -> Any:
    return paged(num_blocks, prefix_cache="radix", **changes)


def hits(manager: Any, tokens: Any, **options: Any) -> int:
    content = tokens if isinstance(tokens, Content) else Content(tokens)
    return int(manager.plan(content, content.length, **options).cached_tokens)


def everything_of(history: History) -> Any:
    books = history.manager.books
    return history.manager.stats(), books.tables.blocks.tobytes(), books.policy.order(), books.pool.state.tobytes()


@hypothesis_settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 1 << 32),
    block_size=st.integers(1, 4),
    num_blocks=st.integers(2, 16),
    groups=st.sampled_from([1, 1, 2]),
    eviction=st.sampled_from(["lru", "fifo", "lfu"]),
    host_blocks=st.sampled_from([0, 0, 3, 40]),
    partial_block_reuse=st.booleans(),
)
def test_on_equal_histories_tree_and_chain_do_the_same_to_the_last_block(seed: int, **sizes: Any) -> None:
    """Hits, victims, tables, and what the listener hears, in order."""
    walks, events = [], []
    for kind in ("hash", "radix"):
        history = History(prefix_cache=kind, **sizes)
        heard: list[tuple[str, bytes]] = []
        history.manager.listener = lambda event, key, heard=heard: heard.append((event, key))
        walks.append(Walk(history, seed))
        events.append(heard)
    for _ in range(60):
        for walk in walks:
            walk.step()
        assert everything_of(walks[0].history) == everything_of(walks[1].history)
        assert events[0] == events[1]


def test_names_are_made_afterwards_for_a_listener_that_comes_late() -> None:
    manager = radix(6)
    for tokens in (range(12), [*range(8), 90, 91, 92, 93]):
        run_through(manager, Content(tokens, salt="s"))
    gone: list[bytes] = []
    manager.listener = lambda event, key: gone.append(key)
    admit(manager, range(50, 74))
    keys = Content(range(12), salt="s").keys(manager.books.chain, 3)
    other = Content([*range(8), 90, 91, 92, 93], salt="s").keys(manager.books.chain, 3)
    assert sorted(gone) == sorted({*keys, *other})


def test_e55_two_equal_prompts_in_one_step_keep_their_own_blocks_until_they_let_go() -> None:
    """Two identical prompts prefilled in one step, both unfinished, both inserted: the second keeps its own blocks as
    further copies. Nothing that a table names is freed, and each row reads its own KV at every point."""
    manager, device = radix(12, max_sequences=16), Device(4)
    contents = [Content(range(10)), Content(range(10))]
    rows = [admit(manager, content).row for content in contents]
    for row, content in zip(rows, contents, strict=True):
        device.write(manager, row, content, 0, 10)
    manager.mark_computed(ints(*rows), ints(10, 10))
    manager.check_invariants()
    tables = manager.table(ints(*rows), 3)
    assert not set(tables[0].tolist()) & set(tables[1].tolist())
    assert len(manager.books.indexes[0]) == 2
    manager.release(rows[0])
    taken = [admit(manager, [500 + number]).row for number in range(9)]
    manager.check_invariants()
    assert all(manager.books.pool.refs[block] == 1 for block in tables[1].tolist())
    device.assert_holds(manager, rows[1], contents[1], 10)
    contents[1].append(77)
    for row in taken:
        manager.release(row)
    append(manager, rows[1], 11)
    manager.mark_computed(ints(rows[1]), ints(11))
    manager.release(rows[1])
    assert hits(manager, range(10)) == 8
    manager.check_invariants()


def test_e57_a_split_under_running_sequences_and_an_empty_key() -> None:
    """A run of 4 blocks is held by a running sequence when another prompt parts from it after 2: the tree splits, the
    holder keeps its blocks. Evictable + protected blocks are those of the tree at every point, and a prompt shorter
    than a block asks for nothing and adds nothing."""
    manager = radix(16)
    assert hits(manager, [1, 2, 3]) == 0
    run_through(manager, [1, 2, 3])
    assert len(manager.books.indexes[0]) == 0
    held = serve(manager, range(17))
    before = manager.table(ints(held), 5).tolist()
    other = serve(manager, [*range(8), *range(60, 69)])
    tree = manager.books.indexes[0]._tree
    trunk = next(iter(tree.root(-1).children.values()))
    assert (len(trunk.blocks), sorted(len(child.blocks) for child in trunk.children.values())) == (2, [2, 2])
    assert manager.table(ints(held), 5).tolist() == before
    for row in (other, held):
        state = manager.books.pool.state[manager.books.indexes[0].check()]
        evictable, protected = int((state == CACHED).sum()), int((state == USED).sum())
        assert evictable >= 0
        assert (evictable + protected) * 4 == manager.stats().live_cached_tokens == 24
        manager.release(row)
    assert hits(manager, range(17)) == 16


@pytest.mark.parametrize("eviction", ["lru", "fifo", "lrc"])
def test_e58_an_integrity_walk_after_random_histories_finds_nothing(eviction: str) -> None:
    """Inserts, splits, locks and evictions at random: sizes, order, duplicates, copies and labels all agree."""
    for seed in range(6):
        pick = random.Random(seed)
        history = History(
            block_size=pick.randint(1, 3), num_blocks=pick.randint(4, 20), prefix_cache="radix", eviction=eviction
        )
        walk = Walk(history, seed)
        for _ in range(150):
            walk.step()
            history.manager.books.indexes[0].check()
        history.finish()


def test_e58_the_walk_sees_what_is_wrong() -> None:
    """Each kind of damage is found: a lost block, tokens that are not those of the block, a wrong place, a child that
    does not continue its parent, a copy that is none."""

    def damage_tokens(index: Any, node: Any) -> None:
        node.tokens[5] ^= 1

    def damage_blocks(index: Any, node: Any) -> None:
        node.blocks.pop()

    def damage_depth(index: Any, node: Any) -> None:
        index._tree._depth[node.blocks[0]] += 1

    def damage_start(index: Any, node: Any) -> None:
        next(iter(node.children.values())).start += 1

    def damage_copies(index: Any, node: Any) -> None:
        content = next(iter(index._first))
        index._spare[content] = [node.blocks[1]]

    def damage_labels(index: Any, node: Any) -> None:
        index._labels.tokens[node.blocks[1]] += 1

    for damage in (damage_tokens, damage_blocks, damage_depth, damage_start, damage_copies, damage_labels):
        manager = radix(16)
        run_through(manager, range(13))
        run_through(manager, [*range(8), *range(60, 65)])
        index = manager.books.indexes[0]
        damage(index, next(iter(index._tree.root(-1).children.values())))
        with pytest.raises(InternalError):
            manager.check_invariants()


def test_a_block_cannot_leave_before_those_that_continue_it() -> None:
    manager = radix(8)
    row = serve(manager, range(12))
    blocks = manager.table(ints(row), 3)[0].tolist()
    manager.release(row)
    with pytest.raises(InternalError, match=f"block {blocks[0]} would leave"):
        manager.books.indexes[0].remove(np.array(blocks[:1]))
