"""Cases of admission, tiers and forks that the bookkeeping answers by itself. Block size 4."""

from __future__ import annotations

import heapq

import pytest

from kvbench.cache.content import Content
from kvbench.cache.radix_tree import RadixTree
from kvbench.errors import InternalError
from tests.cache.machines import EVICTIONS, Device, admit, append, ints, paged, run_through, serve


def test_e26_what_can_never_fit_is_known_at_once() -> None:
    """Pool 4 (16 tokens): 20 tokens can never fit, 4 can."""
    manager = paged(4)
    assert not manager.can_ever_fit(20)
    assert not manager.can_ever_fit(17)
    assert manager.can_ever_fit(4)
    assert not paged(64).can_ever_fit(65)
    assert not paged(7, groups=2).can_ever_fit(16)


def test_e27_an_exact_fit_fits() -> None:
    """Demand equal to capacity, both sides rounded to blocks."""
    manager = paged(4)
    assert manager.can_ever_fit(16)
    plan = manager.plan(Content(range(16)), 16)
    assert plan.fits
    row = manager.commit(plan).row
    assert manager.plan(Content([1]), 1).shortfall_blocks == 1
    manager.release(row)
    row = admit(manager, range(50, 62)).row
    growth = manager.plan_append(ints(row), ints(16))
    assert (growth.fits, growth.new_blocks) == (True, 1)


def test_e29_the_rest_of_a_prefill_in_flight_is_promised() -> None:
    """Pool 8; A and B need 7 blocks each, 3 of them from the host. With the remainder promised only one starts."""
    manager = paged(8, host_blocks=16)
    a, b = range(28), range(100, 128)
    for prompt in (a, b):
        run_through(manager, prompt[:13])
    run_through(manager, range(200, 232))
    manager.complete(manager.take_transfers())
    first = manager.plan(Content(a), 12, promise_tokens=28)
    assert (first.fits, first.cached_tokens, first.promote_blocks) == (True, 12, 3)
    row = manager.commit(first).row
    second = manager.plan(Content(b), 12, promise_tokens=28)
    assert (second.fits, second.cached_tokens) == (False, 12)
    for length in range(16, 29, 4):
        append(manager, row, length)
        manager.check_invariants()
    assert manager.stats().reserved_slots == 0
    manager.complete(manager.take_transfers())
    manager.release(row)
    assert manager.plan(Content(b), 12, promise_tokens=28).fits


def test_a_promise_is_kept_against_every_newcomer_and_ends_with_its_row() -> None:
    manager = paged(4, prefix_cache="none")
    row = admit(manager, range(4), promise_tokens=12).row
    assert manager.stats().reserved_slots == 8
    assert admit(manager, range(8)) is None
    other = admit(manager, range(4)).row
    assert not manager.plan_append(ints(other), ints(5)).fits
    append(manager, row, 12)
    assert manager.stats().reserved_slots == 0
    assert not manager.plan_append(ints(row), ints(13)).fits
    manager.release(row)
    assert manager.plan_append(ints(other), ints(16)).fits


def test_a_rolled_back_speculation_gives_its_blocks_back_to_the_promise() -> None:
    manager = paged(4, prefix_cache="none")
    content = Content(range(4))
    row = serve(manager, content, promise_tokens=12)
    content.extend([1] * 8)
    append(manager, row, 12)
    assert manager.stats().reserved_slots == 0
    manager.truncate(row, 5)
    assert manager.stats().reserved_slots == 4
    manager.check_invariants()


def test_e35_a_sequence_over_a_shared_prefix_frees_exactly_its_own_blocks() -> None:
    """10 tokens, the first 8 shared with a running sequence: releasing gives back 1 block."""
    manager = paged(8)
    serve(manager, range(9))
    before = manager.stats()
    admission = admit(manager, [*range(8), 90, 91])
    assert admission.cached_tokens == 8
    manager.release(admission.row)
    assert manager.stats().blocks_free == before.blocks_free
    manager.check_invariants()


@pytest.mark.parametrize("eviction", EVICTIONS)
def test_e59_children_go_before_their_parents(eviction: str) -> None:
    """Two branches over one trunk: at no point of emptying the cache is a block left behind without its parent."""
    manager = paged(8, eviction=eviction)
    for tail in (50, 60, 50):
        run_through(manager, [*range(8), *range(tail, tail + 4)])
    for count in range(1, 9):
        row = admit(manager, range(1000 + 100 * count, 1000 + 100 * count + 4 * count)).row
        manager.check_invariants()
        manager.release(row)
        manager.check_invariants()
        for tail in (50, 60):
            run_through(manager, [*range(8), *range(tail, tail + 4)])


@pytest.mark.parametrize(("eviction", "index"), [*((one, "hash") for one in EVICTIONS[1:]), ("lfu", "radix")])
def test_e60_an_eviction_costs_the_same_however_many_leaves(
    eviction: str, index: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """10,000 leaves, pool saturated: a few heap operations and one cut of the tree per eviction, not one per leaf."""
    manager = paged(10_000, eviction=eviction, block_size=1, prefix_cache=index)
    for leaf in range(5_000):
        row = admit(manager, [leaf, 1]).row
        manager.mark_computed(ints(row), ints(2))
        manager.release(row)
    pops: list[int] = []
    cuts: list[int] = []
    heappop, cut = heapq.heappop, RadixTree.cut
    monkeypatch.setattr(heapq, "heappop", lambda heap: pops.append(1) or heappop(heap))
    monkeypatch.setattr(RadixTree, "cut", lambda tree, blocks, at: cuts.append(1) or cut(tree, blocks, at))
    for leaf in range(100):
        manager.release(admit(manager, [10_000 + leaf]).row)
        row = admit(manager, [20_000 + leaf]).row
        manager.mark_computed(ints(row), ints(1))
        manager.release(row)
    assert manager.stats().evictions >= 100
    assert len(pops) <= 3 * manager.stats().evictions
    assert len(cuts) == (manager.stats().evictions if index == "radix" else 0)


def test_e63_the_source_of_an_offload_is_read_before_its_next_owner_writes() -> None:
    """The evicted block is reused in the same step: the copy stands before the forward pass that overwrites it."""
    manager, device = paged(2, host_blocks=4), Device(4)
    for tokens in (range(8), range(50, 58), range(9), range(50, 59)):
        content = Content(list(tokens)[:8])
        admission = admit(manager, content)
        device.carry_out(transfers := manager.take_transfers())
        device.write(manager, admission.row, content, admission.cached_tokens, 8)
        device.assert_holds(manager, admission.row, content, 8)
        manager.complete(transfers)
        manager.mark_computed(ints(admission.row), ints(8))
        manager.release(admission.row)
        manager.check_invariants()
    assert manager.stats().promoted_blocks == 2


def test_e63_blocks_of_a_running_copy_are_not_allocatable() -> None:
    """A row with a promotion under way is released: nothing of it can be taken before the copy is complete."""
    manager = paged(3, host_blocks=8)
    run_through(manager, range(9))
    run_through(manager, range(50, 61))
    manager.complete(manager.take_transfers())
    admission = admit(manager, range(9))
    assert (admission.cached_tokens, admission.promoted_tokens) == (8, 8)
    transfers = manager.take_transfers()
    assert manager.stats().blocks_in_transfer == 2
    manager.release(admission.row)
    manager.check_invariants()
    assert not manager.plan(Content(range(90, 98)), 8).fits
    manager.complete(transfers)
    assert manager.stats().blocks_in_transfer == 0
    assert manager.plan(Content(range(90, 98)), 8).fits
    assert manager.plan(Content(range(9)), 9).cached_tokens == 8


def test_e64_with_every_host_block_pinned_the_contents_are_dropped() -> None:
    """Host of 1, two evictions before any copy is complete: one is stored, the other is not marked as stored."""
    manager = paged(2, host_blocks=1)
    run_through(manager, range(8))
    admit(manager, range(50, 58))
    transfers = manager.take_transfers()
    assert len(transfers.offload_host) == 1
    stats = manager.stats()
    assert (stats.evictions, stats.offloaded_blocks, stats.host_blocks_used) == (2, 1, 1)
    assert len(manager.books.below.host.blocks) == 1
    manager.check_invariants()


def test_e66_making_room_on_the_host_stops_when_there_is_room() -> None:
    """A full host of 4; one more block arrives: exactly one goes, the least recently used."""
    manager = paged(1, host_blocks=4)
    for start in range(0, 60, 10):
        run_through(manager, range(start, start + 4))
    assert manager.stats().host_blocks_used == 4
    keys = [Content(range(start, start + 4)).keys(manager.books.chain, 1)[0] for start in range(0, 60, 10)]
    assert [manager.books.below.host.stored[block].name[1] for block in manager.books.below.host.order.order()] == keys[
        1:5
    ]


def test_e67_host_copies_of_blocks_on_the_device_can_be_reclaimed() -> None:
    """Host smaller than the device: after a promotion the host copy is a mirror, and it makes room for others."""
    manager = paged(4, host_blocks=2)
    run_through(manager, range(9))
    run_through(manager, range(50, 66))
    serve(manager, range(9))
    stats = manager.stats()
    assert (stats.promoted_blocks, stats.host_blocks_used, stats.blocks_cached) == (2, 2, 1)
    admit(manager, [80])
    assert manager.stats().offloaded_blocks == stats.offloaded_blocks + 1
    assert manager.stats().host_blocks_used == 2
    manager.check_invariants()


def test_e68_each_tier_counts_its_own_blocks() -> None:
    """Evict to the host and back: device and host counters change on the right tier and never go below 0."""
    manager = paged(2, host_blocks=8)
    run_through(manager, range(8))
    assert manager.stats().host_blocks_used == 0
    run_through(manager, range(50, 58))
    stats = manager.stats()
    assert (stats.blocks_cached, stats.host_blocks_used, stats.offloaded_blocks) == (2, 2, 2)
    row = serve(manager, range(8))
    stats = manager.stats()
    assert (stats.promoted_blocks, stats.host_blocks_used, stats.blocks_used) == (1, 4, 2)
    manager.release(row)


def test_e72_a_thousand_round_trips_leave_no_pin_and_no_reference() -> None:
    """Retrieve, evict, 1,000 times: refs and pins return to 0 and the pool is as it was."""
    manager = paged(3, host_blocks=6)
    for turn in range(1_000):
        start = 100 * (turn % 2)
        row = admit(manager, range(start, start + 9)).row
        manager.complete(manager.take_transfers())
        manager.mark_computed(ints(row), ints(9))
        manager.release(row)
    stats = manager.stats()
    assert (stats.blocks_used, stats.blocks_in_transfer) == (0, 0)
    assert stats.promoted_blocks == 2 * 998
    assert not manager.books.pool.refs.any()
    assert not manager.books.pool.pins.any()
    assert not any(manager.books.below.host.pins)
    manager.check_invariants()


def test_e76_a_readmitted_sequence_asks_the_host_again() -> None:
    """Preempted, its blocks offloaded meanwhile: the second admission promotes them."""
    manager = paged(3, host_blocks=6)
    run_through(manager, range(9))
    run_through(manager, range(50, 61))
    plan = manager.plan(Content(range(9)), 9, readmission=True)
    assert (plan.cached_tokens, plan.promote_blocks) == (8, 2)


def test_e81_beams_that_part_inside_a_block_copy_it_once_each() -> None:
    """Three beams over 6 shared tokens: two copies, the last owner writes in place, dead beams return their blocks."""
    manager, device = paged(8), Device(4)
    contents = [Content(range(6))]
    rows = [serve(manager, contents[0])]
    device.write(manager, rows[0], contents[0], 0, 6)
    for _ in range(2):
        contents.append(contents[0].copy())
        rows.append(manager.fork(rows[0], contents[-1]))
    shared = manager.table(ints(*rows), 2)
    assert (shared == shared[0]).all()
    assert manager.books.pool.refs[shared[0]].tolist() == [3, 3]
    for token, content in enumerate(contents):
        content.append(90 + token)
    plan = manager.plan_append(ints(*rows), ints(7, 7, 7))
    assert (plan.fits, plan.new_blocks) == (True, 2)
    manager.commit_append(plan)
    device.carry_out(transfers := manager.take_transfers())
    manager.complete(transfers)
    assert transfers.copy_source == [int(shared[0][1])] * 2
    tails = manager.table(ints(*rows), 2)[:, 1].tolist()
    assert len(set(tails)) == 3
    assert shared[0][1] in tails
    for row, content in zip(rows, contents, strict=True):
        device.write(manager, row, content, 6, 7)
    for row, content in zip(rows, contents, strict=True):
        device.assert_holds(manager, row, content, 7)
    manager.mark_computed(ints(*rows), ints(7, 7, 7))
    manager.check_invariants()
    assert manager.stats().copy_on_write_copies == 2
    for row in rows[1:]:
        manager.release(row)
    assert manager.stats().blocks_used == 2
    append(manager, rows[0], 8)
    assert manager.stats().copy_on_write_copies == 2


def test_e81_a_cut_into_a_published_block_is_written_in_a_copy() -> None:
    """Speculation rolled back into a full, published block: the published contents stay as they were."""
    manager, device = paged(4), Device(4)
    content = Content(range(8))
    row = serve(manager, content)
    device.write(manager, row, content, 0, 8)
    manager.truncate(row, 6)
    content.truncate(6)
    content.append(77)
    append(manager, row, 7)
    device.carry_out(transfers := manager.take_transfers())
    manager.complete(transfers)
    device.write(manager, row, content, 6, 7)
    device.assert_holds(manager, row, content, 7)
    original = Content(range(9))
    other = admit(manager, original)
    assert other.cached_tokens == 8
    device.assert_holds(manager, other.row, original, 8)
    manager.check_invariants()


def test_forks_and_cuts_are_refused_while_slots_are_unwritten_or_copies_pending() -> None:
    manager = paged(8)
    content = Content(range(6))
    row = serve(manager, content)
    append(manager, row, 7)
    with pytest.raises(InternalError, match=f"row {row}"):
        manager.fork(row, content.copy())
    content.append(9)
    manager.mark_computed(ints(row), ints(7))
    twin = manager.fork(row, content.copy())
    append(manager, twin, 8)
    with pytest.raises(InternalError, match="pending copies"):
        manager.truncate(twin, 7)
    with pytest.raises(InternalError, match="must continue"):
        manager.fork(row, Content(range(10, 17)))


def test_a_hit_on_a_block_that_only_a_copy_holds_keeps_it_in_transfer() -> None:
    """A row leaves its cut, published tail for a copy; before the copy is complete another sequence hits that block."""
    manager = paged(6)
    content = Content(range(8))
    row = serve(manager, content)
    manager.truncate(row, 6)
    content.truncate(6)
    content.append(77)
    append(manager, row, 7)
    transfers = manager.take_transfers()
    before = manager.stats()
    assert before.blocks_in_transfer == 2
    plan = manager.plan(Content(range(9)), 9)
    assert (plan.cached_tokens, plan.new_blocks) == (8, 1)
    other = manager.commit(plan)
    manager.check_invariants()
    after = manager.stats()
    assert (after.blocks_in_transfer, after.blocks_free) == (2, before.blocks_free - 1)
    manager.release(other.row)
    manager.complete(transfers)
    manager.check_invariants()
    assert manager.stats().blocks_in_transfer == 0


def test_on_the_host_too_parents_outlive_their_children() -> None:
    """Two promoted blocks are touched deepest first: the next newcomer displaces the child, and the parent is found."""
    manager = paged(3, host_blocks=2)
    run_through(manager, range(9))
    run_through(manager, range(50, 62), readmission=True)
    manager.complete(manager.take_transfers())
    keys = Content(range(8)).keys(manager.books.chain, 2)
    assert [name[1] for name in manager.books.below.host.blocks] == keys[::-1]
    manager.release(serve(manager, range(9)))
    assert [name[1] for name in manager.books.below.host.blocks] == keys[::-1]


def test_a_copy_that_remains_on_the_device_is_not_offloaded() -> None:
    """Two copies of one content; the eviction of the first moves nothing, that of the second does."""
    manager = paged(2, host_blocks=4)
    rows = [admit(manager, range(4)).row for _ in range(2)]
    manager.mark_computed(ints(*rows), ints(4, 4))
    for row in rows:
        manager.release(row)
    first = admit(manager, [50])
    assert (manager.stats().evictions, manager.stats().offloaded_blocks) == (1, 0)
    admit(manager, [60])
    assert (manager.stats().evictions, manager.stats().offloaded_blocks) == (2, 1)
    manager.release(first.row)
    manager.check_invariants()


def test_a_cut_gives_back_to_the_promise_only_what_came_back_to_the_pool() -> None:
    """The blocks beyond the cut are shared with a fork: nothing returns, so nothing can be set aside."""
    manager = paged(3)
    content = Content(range(12))
    row = serve(manager, content, promise_tokens=12)
    twin = manager.fork(row, content.copy())
    manager.truncate(row, 4)
    assert manager.stats().reserved_slots == 0
    manager.check_invariants()
    manager.release(twin)
    assert manager.stats().reserved_slots == 0
