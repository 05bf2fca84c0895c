"""Cases of swap, of copies that fail, of write-through and of the disk ledger, at the books alone. Block size 4."""

from __future__ import annotations

import pytest

from kvbench.cache.content import Content
from kvbench.cache.transfers import Transfers
from kvbench.errors import InternalError
from tests.cache.machines import admit, append, ints, paged, run_through, serve


def carry_out(manager: object) -> Transfers:
    transfers: Transfers = manager.take_transfers()  # type: ignore[attr-defined]
    manager.complete(transfers)  # type: ignore[attr-defined]
    return transfers


def test_e43_with_the_swap_area_full_nothing_changes_and_it_is_counted() -> None:
    """A row of 3 blocks and an area of 2: refused, the row is as it was; an area of 3 takes it."""
    manager = paged(4, swap_blocks=2)
    row = serve(manager, range(10))
    before = manager.table(ints(row), 4).tolist()
    assert manager.swap_out(row) is None
    assert manager.table(ints(row), 4).tolist() == before
    assert (manager.stats().swap_refusals, manager.stats().swap_blocks_used) == (1, 0)
    manager = paged(4, swap_blocks=3)
    row = serve(manager, range(10))
    assert manager.swap_out(row) is not None
    assert manager.take_transfers().swap_out_device == before[0][:3]
    manager.check_invariants()


def test_a_swapped_sequence_shares_what_the_device_still_has_and_copies_the_rest() -> None:
    """10 tokens out; back while both full blocks are cached: one copy. Back after they were evicted: three copies."""
    for filler, copied in ((None, 1), (range(50, 66), 3)):
        manager = paged(4, swap_blocks=3)
        content = Content(range(10))
        swapped = manager.swap_out(serve(manager, content))
        carry_out(manager)
        if filler is not None:
            run_through(manager, filler)
        content.append(77)
        plan = manager.plan(content, 11, swapped=swapped)
        assert (plan.fits, plan.cached_tokens) == (True, 10)
        row = manager.commit(plan).row
        assert manager.is_loading(row)
        assert len(carry_out(manager).swap_in_swap) == copied
        assert not manager.is_loading(row)
        assert manager.stats().swap_blocks_used == 0
        manager.mark_computed(ints(row), ints(11))
        manager.check_invariants()
        manager.release(row)


def test_a_shared_prefix_goes_out_with_each_sequence_that_is_swapped() -> None:
    """Two rows share a prefix; one goes out. The other leaves and the prefix is evicted: the first still comes back."""
    manager = paged(5, swap_blocks=8)
    first, second = serve(manager, range(10)), serve(manager, [*range(8), 30])
    swapped = manager.swap_out(first)
    carry_out(manager)
    manager.release(second)
    run_through(manager, range(50, 70))
    plan = manager.plan(Content(range(11)), 11, swapped=swapped)
    assert plan.cached_tokens == 10
    manager.commit(plan)
    assert len(carry_out(manager).swap_in_swap) == 3


def test_a_copy_out_that_failed_makes_the_sequence_compute_again() -> None:
    manager = paged(4, swap_blocks=3, prefix_cache="none")
    swapped = manager.swap_out(serve(manager, range(10)))
    transfers = manager.take_transfers()
    assert manager.fail(transfers) == []
    assert manager.stats().swap_blocks_used == 0
    assert manager.plan(Content(range(11)), 11, swapped=swapped).cached_tokens == 0


def test_a_copy_back_that_failed_spoils_its_row_and_frees_the_area() -> None:
    manager = paged(4, swap_blocks=3, prefix_cache="none")
    swapped = manager.swap_out(serve(manager, range(10)))
    carry_out(manager)
    row = manager.commit(manager.plan(Content(range(11)), 11, swapped=swapped)).row
    assert manager.fail(manager.take_transfers()) == [row]
    manager.release(row)
    manager.check_invariants()
    stats = manager.stats()
    assert (stats.blocks_free, stats.swap_blocks_used) == (4, 0)


def test_a_sequence_that_is_given_up_leaves_the_swap_area() -> None:
    """Also while it is still being copied out."""
    for wait in (True, False):
        manager = paged(4, swap_blocks=3)
        swapped = manager.swap_out(serve(manager, range(10)))
        transfers = manager.take_transfers()
        if wait:
            manager.complete(transfers)
        manager.give_up_swapped(swapped)
        assert manager.stats().swap_blocks_used == (0 if wait else 3)
        if not wait:
            manager.complete(transfers)
        assert manager.stats().swap_blocks_used == 0
        manager.check_invariants()


def test_e72_a_thousand_swaps_leave_nothing_behind() -> None:
    manager = paged(4, swap_blocks=3, host_blocks=2)
    for turn in range(1_000):
        content = Content(range(100 * (turn % 3), 100 * (turn % 3) + 10))
        swapped = manager.swap_out(serve(manager, content))
        carry_out(manager)
        content.append(1)
        row = manager.commit(manager.plan(content, 11, swapped=swapped)).row
        carry_out(manager)
        manager.mark_computed(ints(row), ints(11))
        manager.release(row)
        carry_out(manager)
    stats = manager.stats()
    assert (stats.swap_blocks_used, stats.blocks_used, stats.blocks_in_transfer, stats.swapped_out) == (0, 0, 0, 1_000)
    manager.check_invariants()


def offloaded(blocks: int = 2, **settings: object) -> object:
    """A manager whose host tier holds the first `blocks` blocks of range(100) and whose device does not."""
    manager = paged(8, host_blocks=16, **settings)
    run_through(manager, range(4 * blocks))
    run_through(manager, range(200, 232))
    carry_out(manager)
    return manager


def test_a_newcomer_shares_blocks_on_their_way_and_waits_for_them_too() -> None:
    """Hit, pending, miss: the second admission starts no second copy, and reads nothing before it is there."""
    manager = offloaded()
    first = admit(manager, range(9)).row
    plan = manager.plan(Content(range(12)), 12)
    assert (plan.cached_tokens, plan.promote_blocks) == (8, 0)
    second = manager.commit(plan).row
    transfers = manager.take_transfers()
    assert len(transfers.promote_host) == 2
    assert (manager.is_loading(first), manager.is_loading(second)) == (True, True)
    manager.check_invariants()
    manager.complete(Transfers(promote_host=transfers.promote_host[1:], promote_device=transfers.promote_device[1:]))
    assert (manager.is_loading(first), manager.is_loading(second)) == (True, True)
    manager.complete(Transfers(promote_host=transfers.promote_host[:1], promote_device=transfers.promote_device[:1]))
    assert (manager.is_loading(first), manager.is_loading(second)) == (False, False)
    manager.check_invariants()
    assert manager.plan(Content(range(9)), 9).promote_blocks == 0


def test_a_promotion_that_fails_spoils_all_who_wait_and_is_never_found() -> None:
    """Second of three blocks torn: both rows are named, the host forgets it, and a new look-up finds one block."""
    manager = offloaded(3)
    first, second = admit(manager, range(13)).row, admit(manager, range(14)).row
    transfers = manager.take_transfers()
    torn = Transfers(promote_host=transfers.promote_host[1:2], promote_device=transfers.promote_device[1:2])
    fine = Transfers(promote_host=transfers.promote_host[::2], promote_device=transfers.promote_device[::2])
    assert manager.fail(torn) == [first, second]
    assert manager.complete(fine) == [first, second]
    for row in (first, second):
        manager.release(row)
        manager.check_invariants()
    assert manager.plan(Content(range(13)), 13).cached_tokens == 4
    assert manager.stats().blocks_in_transfer == 0


def test_a_store_that_fails_takes_back_what_was_already_copied_up_from_it() -> None:
    """A block is being copied down when it is evicted everywhere else and asked for: the copy down fails, so the copy
    up, which was queued behind it, brought rubbish and is not believed."""
    manager = offloaded()
    row = admit(manager, range(9)).row
    transfers = manager.take_transfers()
    for host_block in transfers.promote_host:
        manager.books.below.host.spoil(host_block)
    assert manager.complete(transfers) == [row]
    manager.release(row)
    manager.check_invariants()
    assert manager.plan(Content(range(9)), 9).cached_tokens == 0


def test_a_failed_copy_on_write_spoils_the_row_that_was_to_write_there() -> None:
    manager = paged(4)
    content = Content(range(6))
    row = serve(manager, content)
    twin = manager.fork(row, content.copy())
    append(manager, row, 7)
    transfers = manager.take_transfers()
    assert manager.fail(transfers) == [row]
    manager.release(row)
    manager.release(twin)
    manager.check_invariants()


@pytest.mark.parametrize("threshold", [1, 2, 3])
def test_completed_blocks_go_down_when_they_were_seen_often_enough(threshold: int) -> None:
    """Computed once, then hit: stored at the first sight that reaches the threshold, and once only."""
    manager = paged(8, host_blocks=12, offload_when="completed", store_threshold=threshold)
    stored = []
    for _ in range(4):
        run_through(manager, range(9))
        carry_out(manager)
        stored.append(manager.stats().offloaded_blocks)
    assert stored == [2 * (turn + 1 >= threshold) for turn in range(4)]
    run_through(manager, range(200, 232))
    assert not manager.take_transfers().offload_device
    assert manager.plan(Content(range(9)), 9).promote_blocks == 2


def test_e63_the_source_of_a_store_is_not_taken_before_the_copy_is_done() -> None:
    """A finished sequence whose blocks are still being copied down: they come back with the copy, not before (E38)."""
    manager = paged(3, host_blocks=4, offload_when="completed")
    row = admit(manager, range(9)).row
    carry_out(manager)
    manager.mark_computed(ints(row), ints(9))
    transfers = manager.take_transfers()
    assert len(transfers.store_device) == 2
    manager.release(row)
    assert manager.deferred_blocks() == 3
    assert not manager.plan(Content(range(90, 98)), 8).fits
    manager.check_invariants()
    manager.complete(transfers)
    assert (manager.deferred_blocks(), manager.plan(Content(range(90, 98)), 8).fits) == (0, True)


def test_what_the_host_gives_up_goes_to_disk_and_comes_back_from_there() -> None:
    """Device 2, host 2, disk 8: the first prompt is pushed two tiers down and read back whole, each file by the
    digest that it was written under."""
    manager = paged(2, host_blocks=2, disk_blocks=8)
    written: dict[int, bytes] = {}
    for start in (0, 50, 70):
        admission = admit(manager, range(start, start + 8))
        transfers = carry_out(manager)
        written |= dict(zip(transfers.demote_disk, transfers.demote_keys, strict=True))
        manager.mark_computed(ints(admission.row), ints(8))
        manager.release(admission.row)
        manager.check_invariants()
    stats = manager.stats()
    assert (stats.host_blocks_used, stats.disk_blocks_used, stats.demoted_blocks) == (2, 2, 2)
    assert len(set(written.values())) == 2
    row = admit(manager, [*range(4), 99, 98]).row
    transfers = manager.take_transfers()
    assert len(transfers.load_disk) == 1
    assert transfers.load_keys == [written[transfers.load_disk[0]]]
    manager.complete(transfers)
    assert not manager.is_loading(row)
    manager.check_invariants()


def test_a_disk_that_is_switched_off_holds_nothing_and_takes_nothing() -> None:
    manager = paged(2, host_blocks=1, disk_blocks=4)
    for start in (0, 50, 70):
        run_through(manager, range(start, start + 8))
    transfers = manager.take_transfers()
    manager.switch_off_disk()
    manager.check_invariants()
    manager.fail(Transfers(demote_host=transfers.demote_host, demote_disk=transfers.demote_disk))
    manager.complete(Transfers(offload_device=transfers.offload_device, offload_host=transfers.offload_host))
    for start in (100, 150):
        run_through(manager, range(start, start + 8))
    assert manager.take_transfers().demote_disk == []
    assert manager.stats().disk_blocks_used == 0
    manager.check_invariants()


def test_copies_that_nobody_asked_for_are_an_error() -> None:
    with pytest.raises(InternalError):
        paged(2).fail(Transfers(promote_host=[0], promote_device=[1]))
