"""Cases E01–E25: pool, index and prefix accounting, with the hash chain and with the tree. Block size 4; "pool n" means
n usable blocks."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

from kvbench.cache.content import Content, KeyChain
from kvbench.cache.paged import PagedManager
from kvbench.cache.reblock import commit_reblock, plan_reblock
from tests.cache import machines
from tests.cache.machines import EVICTIONS, Device, admit, append, ints, run_through, serve

A8, B16 = range(8), range(100, 116)


@pytest.fixture(name="paged", params=["hash", "radix"])
def paged_with_either_index(request: pytest.FixtureRequest) -> Callable[..., PagedManager]:
    """Makes a small paged manager."""
    return partial(machines.paged, prefix_cache=request.param)


def hits(manager, tokens, **options) -> int:
    content = tokens if isinstance(tokens, Content) else Content(tokens)
    return manager.plan(content, content.length, **options).cached_tokens


def test_e01_contents_that_were_overwritten_are_not_found(paged) -> None:
    """Pool 4. A = 8 tokens, finish. B = 16 other tokens takes all 4. A's prompt: no hit; only B's full blocks are
    in the index."""
    manager = paged(4)
    run_through(manager, A8)
    serve(manager, B16)
    assert hits(manager, [*A8, 9]) == 0
    assert len(manager.books.indexes[0]) == 4
    assert hits(manager, [*B16, 9]) == 16


def test_e02_an_evicted_block_is_forgotten_before_it_is_handed_out(paged) -> None:
    """Evict a cached block, hand it out mutable, ask for the old key: a miss, and the block has no content id."""
    manager = paged(2)
    run_through(manager, A8)
    admission = admit(manager, B16[:8])
    assert not manager.books.pool.content_ids.any()
    assert not len(manager.books.indexes[0])
    manager.release(admission.row)
    assert hits(manager, [*A8, 9]) == 0


@pytest.mark.parametrize("eviction", EVICTIONS)
def test_e04_removed_is_announced_with_the_last_copy(paged, eviction: str) -> None:
    """A and B, the same 8 tokens computed at the same time: each key lives in two blocks. Their blocks are evicted one
    by one: `removed` is announced with the last copy of its key, not before and not later."""
    manager = paged(4, eviction=eviction)
    events: list[tuple[str, bytes]] = []
    manager.listener = lambda event, key: events.append((event, key))
    first, second = admit(manager, A8), admit(manager, A8)
    copies = manager.table(ints(first.row, second.row), 2).T.tolist()
    manager.mark_computed(ints(first.row, second.row), ints(8, 8))
    keys = Content(A8).keys(manager.books.chain, 2)
    assert events == [("stored", key) for key in keys]
    manager.release(first.row)
    manager.release(second.row)
    events.clear()
    gone: set[int] = set()
    for number in range(4):
        row = admit(manager, [50 + number]).row
        gone |= set(manager.table(ints(row), 1)[0].tolist())
        announced = {key for event, key in events if event == "removed"}
        assert announced == {key for key, blocks in zip(keys, copies, strict=True) if set(blocks) <= gone}
    assert len(events) == 2
    assert manager.stats().evictions == 4


def test_e05_a_refused_plan_leaves_no_trace_and_hits_are_not_supply_twice(paged) -> None:
    """Pool 4, a cached chain of 3. A request of 5 blocks with those 3 hits is refused, without touching ref counts or
    the LRU order; one of 4 blocks with the same hits is admitted."""
    manager = paged(4)
    run_through(manager, range(12))
    order = manager.books.policy.order()
    refused = manager.plan(Content(range(20)), 20)
    assert (refused.fits, refused.cached_tokens, refused.shortfall_blocks) == (False, 12, 1)
    assert manager.books.policy.order() == order
    assert not manager.books.pool.refs.any()
    admitted = admit(manager, range(16))
    assert admitted.cached_tokens == 12
    manager.check_invariants()


def test_e06_hits_are_taken_before_anything_is_evicted(paged) -> None:
    """All free blocks are cached and the LRU head is the very hit blocks: the new ones are the other two."""
    manager = paged(4)
    run_through(manager, A8)
    run_through(manager, B16[:8])
    hit = sorted(manager.books.policy.order()[:2])
    admission = admit(manager, range(16))
    blocks = manager.table(ints(admission.row), 4)[0].tolist()
    assert sorted(blocks[:2]) == hit
    assert sorted(blocks) == [1, 2, 3, 4]


def test_e07_hits_of_all_groups_are_taken_before_any_group_allocates(paged) -> None:
    """Two groups, each with one hit that is next in the eviction order, and one new block each: no physical block
    appears twice."""
    manager = paged(4, groups=2)
    run_through(manager, range(4))
    run_through(manager, range(50, 54))
    admission = admit(manager, range(8))
    assert admission.cached_tokens == 4
    blocks = [manager.table(ints(admission.row), 2, group)[0].tolist() for group in range(2)]
    assert sorted(blocks[0] + blocks[1]) == [1, 2, 3, 4]
    manager.check_invariants()


def test_e08_claiming_a_hit_keeps_its_key(paged) -> None:
    """A hit on an unowned block, finish, hit again."""
    manager = paged(4)
    for expected in (0, 8, 8):
        admission = admit(manager, range(9))
        assert admission.cached_tokens == expected
        manager.mark_computed(ints(admission.row), ints(9))
        manager.release(admission.row)


def test_e09_a_block_over_two_chunks_is_published_when_its_last_token_is_computed(paged) -> None:
    """Chunk budget 6, prompt 8: block 1 spans two chunks."""
    manager = paged(4)
    row = admit(manager, A8).row
    manager.mark_computed(ints(row), ints(6))
    assert hits(manager, [*A8, 9]) == 4
    manager.mark_computed(ints(row), ints(7))
    assert hits(manager, [*A8, 9]) == 4
    manager.mark_computed(ints(row), ints(8))
    assert hits(manager, [*A8, 9]) == 8


def test_e11_with_two_groups_each_is_released_tail_first(paged) -> None:
    """The eviction order is tail-first within each group, also when the release had to wait for a copy in flight."""
    orders = []
    for deferred in (False, True):
        manager = paged(8, groups=2, host_blocks=16)
        run_through(manager, range(13))
        run_through(manager, range(50, 66))
        row = admit(manager, range(13)).row
        owned = [manager.table(ints(row), 3, group)[0].tolist() for group in range(2)]
        transfers = manager.take_transfers()
        if deferred:
            manager.release(row)
            assert manager.stats().blocks_cached == 0
            manager.complete(transfers)
        else:
            manager.complete(transfers)
            manager.release(row)
        manager.check_invariants()
        order = manager.books.policy.order()
        for blocks in owned:
            assert [block for block in order if block in blocks] == blocks[::-1]
        orders.append(order)
    assert orders[0] == orders[1]


def test_e12_a_prompt_that_is_cached_whole_still_computes_its_last_token(paged) -> None:
    """Prompt 8, fully cached: 4 tokens hit, the chain is not broken, and a later prompt of 12 hits 8."""
    manager = paged(6)
    run_through(manager, A8)
    admission = admit(manager, A8)
    assert admission.cached_tokens == 4
    manager.mark_computed(ints(admission.row), ints(8))
    manager.release(admission.row)
    manager.check_invariants()
    assert hits(manager, range(12)) == 8


def test_e12_with_reuse_inside_blocks_seven_of_eight_tokens_hit(paged) -> None:
    """Prompt 8, fully cached: the second block is copied, 7 tokens hit; the chain is not broken, and what the copy
    becomes when it is full is a further copy of the same content."""
    manager, device = paged(6, partial_block_reuse=True), Device(4)
    content = Content(A8)
    row = serve(manager, content)
    device.write(manager, row, content, 0, 8)
    manager.release(row)
    plan = manager.plan(content, 8)
    assert (plan.cached_tokens, plan.new_blocks, plan.fits) == (7, 1, True)
    admission = manager.commit(plan)
    device.carry_out(transfers := manager.take_transfers())
    assert (len(transfers.copy_source), manager.stats().blocks_in_transfer) == (1, 2)
    manager.check_invariants()
    manager.complete(transfers)
    device.assert_holds(manager, admission.row, content, 7)
    device.write(manager, admission.row, content, 7, 8)
    manager.mark_computed(ints(admission.row), ints(8))
    manager.release(admission.row)
    manager.check_invariants()
    assert hits(manager, range(12)) == 8
    assert manager.stats().live_cached_tokens == 8


def test_a_prompt_that_parts_inside_a_block_copies_the_longest_front(paged) -> None:
    """Three continuations of one block; the wanted tokens agree with them in 1, 3 and 2 places."""
    manager = paged(12, partial_block_reuse=True)
    for tail in ([50, 90, 90, 90], [50, 51, 52, 90], [50, 51, 90, 90]):
        run_through(manager, [0, 1, 2, 3, *tail])
    plan = manager.plan(Content([0, 1, 2, 3, 50, 51, 52, 53, 54]), 9)
    assert (plan.cached_tokens, plan.new_blocks) == (7, 2)
    assert hits(manager, [0, 1, 2, 3, 50, 51]) == 5
    assert hits(manager, Content([0, 1, 2, 3, 50, 51], salt="s")) == 0
    assert hits(manager, [9, 1, 2, 3, 50, 51]) == 0
    assert hits(manager, [0, 1, 9]) == 2


def test_a_source_without_an_owner_counts_as_need_and_is_left_where_there_is_no_room(paged) -> None:
    """Pool 3, all cached: 3 new blocks fit only when the source may be evicted as well, so the plan does without it;
    with 2 new blocks it is used (E05, E15)."""
    manager = paged(3, partial_block_reuse=True)
    run_through(manager, range(12))
    plan = manager.plan(Content([0, 1, 90, 91, 92, 93, 94, 95, 96]), 9)
    assert (plan.fits, plan.cached_tokens, plan.new_blocks, plan.evict_blocks) == (True, 0, 3, 3)
    plan = manager.plan(Content([0, 1, 90, 91, 92, 93, 94, 95]), 8)
    assert (plan.fits, plan.cached_tokens, plan.new_blocks, plan.evict_blocks) == (True, 2, 2, 2)
    manager.commit(plan)
    manager.check_invariants()
    assert manager.books.supply() == 0
    manager.complete(manager.take_transfers())
    assert manager.books.supply() == 1
    assert hits(manager, range(5)) == 4


def test_two_sequences_of_one_step_copy_from_one_source(paged) -> None:
    manager = paged(8, partial_block_reuse=True)
    run_through(manager, A8)
    rows = [admit(manager, [0, 1, 2, 3, 4, 5, 90 + number]).row for number in range(2)]
    transfers = manager.take_transfers()
    assert len(set(transfers.copy_source)) == 1
    assert len(set(transfers.copy_destination)) == 2
    manager.check_invariants()
    for row in rows:
        manager.release(row)
    manager.complete(transfers)
    manager.check_invariants()
    assert hits(manager, [*A8, 9]) == 8


def test_e14_two_plans_that_count_the_same_unowned_hit(paged) -> None:
    """Pool 3, a cached block that both requests hit, room for one: the second plan is stale, and made anew it is
    refused."""
    manager = paged(3)
    run_through(manager, range(4))
    first = manager.plan(Content([*range(4), *range(20, 28)]), 12)
    second = manager.plan(Content([*range(4), *range(30, 38)]), 12)
    assert first.fits
    assert second.fits
    manager.commit(first)
    again = manager.plan(second.content, 12)
    assert (again.fits, again.cached_tokens, again.shortfall_blocks) == (False, 4, 2)


def test_e15_hits_save_compute_but_unowned_ones_still_cost_capacity(paged) -> None:
    """Pool 4 with 2 cached blocks: 2 hits and 3 new blocks do not fit, although 8 tokens need no compute; while a
    sequence that owns the hits is running, they cost nothing."""
    manager = paged(4)
    run_through(manager, A8)
    plan = manager.plan(Content(range(20)), 20)
    assert (plan.cached_tokens, plan.fits, plan.shortfall_blocks) == (8, False, 1)
    manager = paged(5)
    serve(manager, range(9))
    plan = manager.plan(Content([*A8, *range(40, 48)]), 16)
    assert (plan.cached_tokens, plan.fits, plan.new_blocks) == (8, True, 2)


def test_e17_a_readmitted_sequence_computes_the_rest_and_not_past_its_end(paged) -> None:
    """Preempted after 6 tokens, re-admitted with 1 hit block: 2 tokens are left to compute."""
    manager = paged(4)
    row = admit(manager, range(6)).row
    manager.mark_computed(ints(row), ints(6))
    manager.release(row)
    admission = admit(manager, range(6), readmission=True)
    assert admission.cached_tokens == 4
    assert 6 - admission.cached_tokens == 2


def test_e19_rehits_after_a_preemption_are_counted_apart(paged) -> None:
    """Random prompts, each preempted and re-admitted: the reported hit rate is 0."""
    manager = paged(16)
    random = np.random.default_rng(0)
    for _ in range(10):
        tokens = random.integers(0, 10_000, 9)
        run_through(manager, tokens)
        run_through(manager, tokens, readmission=True)
    stats = manager.stats()
    assert (stats.prefix_cache_queries, stats.prefix_cache_hits) == (90, 0)
    assert (stats.readmission_queries, stats.readmission_hits) == (90, 80)


@pytest.mark.parametrize("function", ["constant", "blind to the parent"])
@pytest.mark.parametrize("host_blocks", [0, 8])
def test_e20_colliding_digests_cost_hits_and_never_give_wrong_kv(paged, function: str, host_blocks: int) -> None:
    """A digest that is constant, and one that does not see the parent: every hit holds precisely its own tokens."""
    manager = paged(6, hash_function=function, host_blocks=host_blocks)
    device, random = Device(4), np.random.default_rng(1)
    for _ in range(120):
        content = Content(random.integers(0, 2, 13), salt=[None, "s"][int(random.integers(2))])
        admission = admit(manager, content)
        transfers = manager.take_transfers()
        device.carry_out(transfers)
        manager.complete(transfers)
        device.write(manager, admission.row, content, admission.cached_tokens, 13)
        device.assert_holds(manager, admission.row, content, 13)
        manager.mark_computed(ints(admission.row), ints(13))
        manager.release(admission.row)
        manager.check_invariants()


def test_e20_an_ancestor_that_collides_makes_a_miss(paged) -> None:
    """Same second block after different first ones, under a digest that sees the second block only."""
    manager = paged(8, hash_function="blind to the parent")
    run_through(manager, [0, 0, 0, 0, 7, 7, 7, 7])
    assert hits(manager, [1, 1, 1, 1, 7, 7, 7, 7, 9]) == 0
    run_through(manager, [1, 1, 1, 1, 7, 7, 7, 7])
    is_tree = manager.settings.prefix_cache == "radix"
    assert hits(manager, [1, 1, 1, 1, 7, 7, 7, 7, 9]) == (8 if is_tree else 4)
    assert hits(manager, [0, 0, 0, 0, 7, 7, 7, 7, 9]) == 8


@pytest.mark.parametrize("function", ["xxh3-128", "sha256", "constant"])
def test_e22_salts_make_disjoint_namespaces(paged, function: str) -> None:
    """Salts s1, s2, the empty one, and none: nobody hits another's blocks, whatever the digest."""
    salts = [None, "", "s1", "s2"]
    manager = paged(16, hash_function=function)
    for salt in salts:
        content = Content(range(9), salt=salt)
        assert hits(manager, content) == 0
        run_through(manager, content)
    if function != "constant" or manager.settings.prefix_cache == "radix":
        assert [hits(manager, Content(range(9), salt=salt)) for salt in salts] == [8] * 4
    chain = KeyChain(4, b"model a")
    roots = {chain.root(salt) for salt in salts} | {KeyChain(4, b"model b").root(salt) for salt in salts}
    assert len(roots) == 8


def test_e23_after_a_change_of_block_size_a_key_stands_for_its_own_block_to_the_end(paged) -> None:
    """Contents were named in units of 4, blocks are now of 8: each block has the key of its own end, as a pool that was
    of 8 from the start would give it. A prompt that agrees in the first unit of a block alone does not find it."""
    manager = paged(8)
    run_through(manager, range(16))
    events: list[tuple[str, bytes]] = []
    manager.listener = lambda event, key: events.append((event, key))
    commit_reblock(manager, plan_reblock(manager, 8, 4))
    manager.check_invariants()
    keys = Content(range(16)).keys(KeyChain(8), 2)
    assert {key for event, key in events if event == "stored"} == set(keys)
    assert {key for event, key in events if event == "removed"} == set(Content(range(16)).keys(KeyChain(4), 4))
    assert hits(manager, range(17)) == 16
    assert hits(manager, [*range(12), *range(90, 95)]) == 8
    assert hits(manager, [*range(4), *range(90, 103)]) == 0


@pytest.mark.parametrize("inside", [False, True])
def test_e24_a_partly_filled_block_is_never_published(paged, inside: bool) -> None:
    """No key for a partial tail, hence none to go stale when the block becomes full; nor do other prompts find its
    front before that."""
    manager = paged(4, partial_block_reuse=inside)
    events: list[tuple[str, bytes]] = []
    manager.listener = lambda event, key: events.append((event, key))
    content = Content(range(7))
    row = serve(manager, content)
    assert len(events) == 1
    assert hits(manager, [*range(6), 90, 91]) == 4
    content.append(7)
    append(manager, row, 8)
    manager.mark_computed(ints(row), ints(8))
    assert [event for event, _ in events] == ["stored", "stored"]
    assert hits(manager, [*range(6), 90, 91]) == (6 if inside else 4)


@pytest.mark.parametrize("function", ["xxh3-128", "sha256"])
def test_e25_keys_are_equal_in_every_process(function: str) -> None:
    """The same prompt hashed in processes with different PYTHONHASHSEED."""
    program = (
        "from kvbench.cache.content import Content, KeyChain\n"
        f"keys = Content(range(32), salt='tenant').keys(KeyChain(4, b'model', {function!r}), 8)\n"
        "print(b''.join(keys).hex())"
    )
    seen = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "77")
    }
    here = b"".join(Content(range(32), salt="tenant").keys(KeyChain(4, b"model", function), 8)).hex()
    assert seen == {here + "\n"}


def test_e51_the_hit_of_all_groups_is_the_least_of_each(paged) -> None:
    """The second group has lost its last block: what both groups have counts."""
    manager = paged(9, groups=2)
    run_through(manager, range(16))
    manager.release(admit(manager, [70]).row)
    assert sorted(len(index) for index in manager.books.indexes) == [3, 4]
    admission = admit(manager, range(17))
    assert admission is None
    assert hits(manager, range(16)) == 12
    manager.check_invariants()
