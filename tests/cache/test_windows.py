"""Window groups: what is let go when, what a hit needs, what a promise covers. Block size 4 unless a test says so."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from kvbench.cache.content import Content, KeyChain
from kvbench.cache.eviction.outside import LruWithOutside
from kvbench.cache.eviction.policy import EVICTION_POLICIES
from kvbench.cache.manager import make_manager
from kvbench.cache.transfers import Transfers
from kvbench.cache.types import CacheSettings
from kvbench.errors import CannotRunError, InternalError, UsageError
from kvbench.geometry.memory import group_blocks
from kvbench.geometry.model import LayerGroup
from tests.cache.machines import Device, admit, append, ints, paged, run_through, serve, window_group

POLICIES = sorted(EVICTION_POLICIES)


def entries(manager: Any, row: int, group: int = 0) -> list[bool]:
    """Which entries of the row's table are real blocks."""
    held = int(manager.books.tables.held[row])
    return [bool(block) for block in manager.table(ints(row), held, group)[0]]


def decode(manager: Any, row: int, content: Content, tokens: int = 1) -> None:
    """One token after another: slot, content, progress."""
    for _ in range(tokens):
        content.append(7)
        append(manager, row, content.length)
        manager.mark_computed(ints(row), ints(content.length))


def readable(window: int, query: int, block_size: int) -> range:
    """Logical blocks that a query at this position reads, itself included: by enumeration."""
    blocks = sorted({at // block_size for at in range(max(0, query - window + 1), query + 1)})
    return range(blocks[0], blocks[-1] + 1)


def test_e47_a_block_is_let_go_when_no_query_reads_it_any_more() -> None:
    """W = 8. 10 tokens computed, the 11th in flight: nothing is freed, position 10 still reads 3. At 11 computed block
    0 goes, for position 11 reads from 4 on."""
    manager = paged(8, windows=[8], prefix_cache="none")
    content = Content(range(10))
    row = serve(manager, content)
    append(manager, row, 11)
    assert entries(manager, row) == [True, True, True]
    content.append(7)
    manager.mark_computed(ints(row), ints(11))
    assert entries(manager, row) == [False, True, True]
    assert manager.stats().blocks_free == 6
    manager.check_invariants()


@pytest.mark.parametrize("window", [1, 2, 4, 5, 8, 9, 13])
@pytest.mark.parametrize("block_size", [1, 3, 4])
def test_e47_exactly_the_blocks_that_are_still_read_are_held(window: int, block_size: int) -> None:
    """After every token, in a hybrid of a full and a window group: the window group holds what the next query reads of
    the past, no block less and no block more."""
    manager = paged(64, windows=[None, window], block_size=block_size, max_context=40)
    content = Content([1], capacity=40)
    row = serve(manager, content)
    for _ in range(35):
        decode(manager, row, content)
        past = [at for at in readable(window, content.length, block_size) if at * block_size < content.length]
        held = [at for at, real in enumerate(entries(manager, row, 1)) if real]
        assert held == past
        assert all(entries(manager, row, 0))


def test_e48_a_prompt_in_chunks_never_holds_more_than_the_cap_and_the_cap_is_one_function() -> None:
    """W = 8, chunk 8, prompt 400: at most ⌈(W − 1 + chunk) / B⌉ + 1 = 5 blocks of a window group, not 100: in sizing,
    in what the admission promises, and in what is held while the chunks come in."""
    cap = group_blocks(LayerGroup("window", (0,), 1, 1, 1, 8), 400, 4, chunk=8)
    assert cap == 5
    exact = paged(cap, windows=[8], max_context=400, step_tokens=8, prefix_cache="none")
    assert exact.can_ever_fit(400)
    assert not paged(cap - 1, windows=[8], max_context=400, step_tokens=8).can_ever_fit(400)
    content = Content(range(400))
    row = admit(exact, content, hold=8, promise_tokens=400).row
    assert exact.stats().blocks_used + exact.stats().reserved_slots // 4 == cap
    for end in range(8, 401, 8):
        append(exact, row, end)
        assert exact.stats().blocks_used <= cap
        exact.mark_computed(ints(row), ints(end))
        exact.check_invariants()
    assert exact.peak_blocks(row) <= cap


def test_a_prompt_computed_whole_is_promised_whole_and_shrinks_to_its_window_afterwards() -> None:
    """Without chunks a prompt of 40 holds its 10 blocks at once, so a pool of 9 can never serve it; 8 of them come
    back, and growth to 80 needs no further promise than the window's own."""
    assert not paged(9, windows=[8]).can_ever_fit(40)
    manager = paged(10, windows=[8], prefix_cache="none", max_context=80)
    row = serve(manager, Content(range(40), capacity=80), promise_tokens=80)
    assert manager.stats().blocks_used == 2
    assert manager.stats().reserved_slots == 4 * (3 - 2)
    assert manager.peak_blocks(row) == 10


def test_e49_a_window_reads_exactly_its_last_tokens_in_order() -> None:
    """Prompts of 1 to 2W tokens, then decodes: the slots of positions n − W + 1 … n are distinct, in the order of the
    positions, and hold these tokens; a slot before the window is refused, not answered with another token's."""
    window, size = 6, 4
    for length in range(1, 2 * window + 1):
        manager, device = paged(16, windows=[window], prefix_cache="none"), Device(size)
        content = Content(range(length), capacity=40)
        row = serve(manager, content)
        for position in range(length, length + 9):
            content.append(100 + position)
            append(manager, row, position + 1)
            first = max(0, position - window + 1)
            device.device.update({int(slot): position for slot in manager.slots(ints(row), ints(position), ints(1))})
            slots = manager.slots(ints(row), ints(first), ints(position + 1 - first)).tolist()
            assert [slot % size for slot in slots] == [at % size for at in range(first, position + 1)]
            assert len(set(slots)) == len(slots) == min(window, position + 1)
            decoded = [at for at in range(first, position + 1) if at >= length]
            assert [device.device[slot] for slot in slots[-len(decoded) :]] == decoded
            manager.mark_computed(ints(row), ints(position + 1))
        with pytest.raises(InternalError, match="no block"):
            manager.slots(ints(row), ints(0), ints(1))


def test_e51_a_later_group_can_only_shrink_the_common_hit() -> None:
    """The full group holds 3 blocks of the prompt, the window group all that a hit of 4 reads: 3 in common, and the
    reverse; a window group that holds no readable tail for 3 shrinks it further."""
    manager = paged(32, windows=[None, 6])
    run_through(manager, range(17))
    full, window = manager.books.indexes
    prompt = Content(range(17))
    assert manager.plan(prompt, 17).cached_tokens == 16
    keys, strong = prompt.keys(manager.books.chain, 4)[:4], prompt.keys(manager.books.tail_chain, 4)[:4]
    _lose(manager, 0, full.blocks[keys[3]])
    assert manager.plan(prompt, 17).cached_tokens == 12
    _lose(manager, 1, window.blocks[strong[2]])
    assert manager.plan(prompt, 17).cached_tokens == 8
    _lose(manager, 1, window.blocks[strong[0]])
    assert manager.plan(prompt, 17).cached_tokens == 0


def _lose(manager: Any, group: int, block: int) -> None:
    """One cached block loses its contents, as an eviction would have it."""
    manager.books.policy.forget(np.array([block]))
    manager.books.indexes[group].remove(np.array([block]))
    manager.books.pool.evict(np.array([block]))


def test_a_hit_takes_only_what_the_window_reads_and_null_entries_before() -> None:
    """W = 6: behind a hit of 16 tokens the query at 16 reads 11 … 15, blocks 2 and 3."""
    manager = paged(32, windows=[None, 6])
    run_through(manager, range(17))
    before = manager.stats()
    row = admit(manager, range(20)).row
    assert entries(manager, row, 0) == [True] * 5
    assert entries(manager, row, 1) == [False, False, True, True, True]
    after = manager.stats()
    assert after.blocks_used == 5 + 3
    assert before.blocks_cached - after.blocks_cached == 4 + 2
    manager.check_invariants()


@pytest.mark.parametrize(("windows", "pool"), [([6], 32), ([6, 10], 64), ([None, 6, 6, 6], 340)])
def test_e52_tails_of_sessions_outlive_what_fell_out_of_their_windows(windows: list[int | None], pool: int) -> None:
    """Four sessions take turns, each turn 48 tokens longer than the last. What their windows still read is a quarter of
    the pool or less; between two turns of a session more than the pool falls out of windows. The tails stay, and every
    turn after the first finds all of the one before."""
    manager = paged(pool, windows=windows, max_context=256, step_tokens=8)
    for turn in range(3):
        for session in range(4):
            prompt = Content([*range(1000 * session, 1000 * session + 48 * (turn + 1))])
            admission = admit(manager, prompt, hold=48 * turn + 8, promise_tokens=prompt.length)
            assert admission.cached_tokens == 48 * turn, (turn, session)
            for end in range(48 * turn + 8, prompt.length + 1, 8):
                append(manager, admission.row, end)
                manager.mark_computed(ints(admission.row), ints(end))
            manager.release(admission.row)
            manager.check_invariants()
    assert manager.stats().evictions > 0


def test_outside_blocks_go_first_until_they_are_half_of_what_is_cached() -> None:
    manager = paged(40, windows=[8], max_context=160)
    run_through(manager, range(80))
    policy = manager.books.policy
    assert isinstance(policy, LruWithOutside)
    tail = [at for at in range(20) if at >= 18]
    strong = Content(range(80)).keys(manager.books.tail_chain, 20)
    index = manager.books.indexes[0]
    admit(manager, range(500, 500 + 4 * 34))
    left = [at for at in range(20) if strong[at] in index.blocks]
    assert set(tail) <= set(left)
    assert len(left) == 6
    assert left[:4] == [14, 15, 16, 17], "the lowest go first"


def test_the_end_of_a_shared_prompt_is_kept_once_two_have_hit_it() -> None:
    """It lies outside the window of whoever computed it, and is no longer treated as such after its second hit."""
    manager = paged(64, windows=[8], max_context=128)
    system = list(range(32))
    run_through(manager, [*system, *range(100, 140)])
    index = manager.books.indexes[0]
    end = {index.blocks[key] for key in Content(system).keys(manager.books.tail_chain, 8)[6:8]}
    for start, is_kept in ((200, False), (300, True)):
        run_through(manager, [*system, *range(start, start + 40)])
        policy = manager.books.policy
        assert isinstance(policy, LruWithOutside)
        assert set(policy.order()) >= end
        assert (end <= set(policy.order()[-policy.inside :])) == is_kept


def test_e53_a_recycled_block_keeps_nothing_of_its_former_group() -> None:
    """Blocks go back and forth between a full and a window group: no index names a block of the other group, a key that
    was evicted is a miss, and no block is freed twice."""
    manager = paged(12, windows=[None, 4])
    pick = random.Random(3)
    for _ in range(60):
        start = pick.randrange(5) * 100
        run_through(manager, range(start, start + pick.randint(1, 16)))
        owners = manager.books.pool.groups
        for group, index in enumerate(manager.books.indexes):
            assert all(owners[block] == group for block in index.blocks.values())
    stats = manager.stats()
    assert stats.blocks_free + stats.blocks_cached == 12
    assert stats.evictions > 0


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_e54_after_a_block_is_lost_in_one_group_all_recompute_from_a_common_boundary(lost: int) -> None:
    """Our groups have one block size and windows of 5, 9 and none instead of blocks of 4, 8 and 16. Two blocks of one
    group are invalid: everybody computes on from one boundary, and every slot that is read holds its own token's KV."""
    windows = [5, 9, None]
    manager, device = paged(40, windows=windows), Device(4, 3)
    first = Content(range(25))
    row = admit(manager, first).row
    device.write(manager, row, first, 0, 25)
    manager.mark_computed(ints(row), ints(25))
    manager.release(row)
    index = manager.books.indexes[lost]
    chain = manager.books.chain if windows[lost] is None else manager.books.tail_chain
    for at in (5, 4):
        _lose(manager, lost, index.blocks[first.keys(chain, 6)[at]])
    again = Content(range(25))
    admission = admit(manager, again)
    assert admission.cached_tokens == 16
    device.write(manager, admission.row, again, 16, 25)
    device.assert_holds(manager, admission.row, again, 25, query=16)
    manager.mark_computed(ints(admission.row), ints(25))
    manager.check_invariants()


def test_e23_a_tail_block_is_named_by_everything_up_to_its_own_end() -> None:
    """Our hash unit is the block. The key of a window block depends on all tokens before its end and on none behind."""
    manager = paged(16, windows=[6])
    chain = manager.books.tail_chain
    tokens = list(range(16))
    keys = Content(tokens).keys(chain, 4)
    for at in range(16):
        changed = [*tokens[:at], 999, *tokens[at + 1 :]]
        others = Content(changed).keys(chain, 4)
        assert [a == b for a, b in zip(keys, others, strict=True)] == [end * 4 <= at for end in range(1, 5)]


def test_e20_a_tail_without_its_parents_is_never_another_prompts_tail() -> None:
    """Two prompts that differ in their first token only. The parents of the tail are gone, and the digest that a suite
    may choose is blind to the parent: still no hit, because window blocks are named by sha256 of the whole prefix."""
    manager = paged(5, windows=[4], max_context=32, hash_function="blind to the parent", step_tokens=4)
    content = Content(range(16))
    row = admit(manager, content, hold=4, promise_tokens=16).row
    for end in (4, 8, 12, 16):
        append(manager, row, end)
        manager.mark_computed(ints(row), ints(end))
    manager.release(row)
    assert manager.plan(Content([*range(16), 5]), 17).cached_tokens == 16
    assert manager.plan(Content([900, *range(1, 16), 5]), 17).cached_tokens == 0


def test_e22_salts_are_namespaces_of_tails_too() -> None:
    manager = paged(32, windows=[None, 6])
    run_through(manager, Content(range(13), salt="a"))
    for salt, expected in (("a", 12), ("b", 0), (None, 0), ("", 0)):
        assert manager.plan(Content(range(13), salt=salt), 13).cached_tokens == expected


@pytest.mark.parametrize("policy", POLICIES)
def test_e07_hits_of_full_and_window_groups_are_ours_before_anything_is_evicted(policy: str) -> None:
    """A hit in both groups of a full pool, and new blocks for both: no block twice, no hit evicted."""
    manager = paged(12, windows=[None, 4], eviction=policy)
    run_through(manager, range(12))
    run_through(manager, range(50, 62))
    admission = admit(manager, [*range(12), 90, 91, 92])
    assert admission.cached_tokens == 12
    manager.check_invariants()
    manager.release(admission.row)
    manager.check_invariants()


def test_e11_a_deferred_free_evicts_in_the_order_of_an_immediate_one() -> None:
    """Two groups; the row's release has to wait for a copy in one of its blocks. Tail first within each group."""
    orders = []
    for deferred in (False, True):
        manager = paged(40, windows=[None, 9], max_context=40)
        row = serve(manager, range(16))
        if deferred:
            block = int(manager.table(ints(row), 4)[0, 3])
            manager.books.pool.pin(block)
            manager.release(row)
            assert len(manager.books.policy.order()) == 2, "what fell out of the window before"
            manager.books.pool.unpin(block)
            manager.books.complete(Transfers())
        else:
            manager.release(row)
        orders.append(manager.books.policy.order())
        manager.check_invariants()
    assert orders[0] == orders[1]


def test_rows_that_let_go_of_one_shared_block_in_one_step_give_it_back_once() -> None:
    manager = paged(40, windows=[5], max_context=40)
    prompt = list(range(12))
    contents = [Content([*prompt, 100 + number], capacity=40) for number in range(3)]
    rows = [serve(manager, content) for content in contents]
    for _ in range(12):
        for content in contents:
            content.append(1)
        lengths = ints(*(content.length for content in contents))
        manager.commit_append(manager.plan_append(ints(*rows), lengths))
        manager.mark_computed(ints(*rows), lengths)
        manager.check_invariants()
    for row in rows:
        manager.release(row)
    manager.check_invariants()
    assert manager.books.claimed == 0


def test_forks_share_their_window_and_let_go_of_it_one_by_one() -> None:
    manager = paged(40, windows=[None, 5], max_context=40)
    content = Content(range(10), capacity=40)
    row = serve(manager, content)
    twin_content = content.copy()
    twin = manager.fork(row, twin_content)
    manager.check_invariants()
    for _ in range(10):
        decode(manager, twin, twin_content)
        manager.complete(manager.take_transfers())
        manager.check_invariants()
    decode(manager, row, content, 10)
    manager.complete(manager.take_transfers())
    manager.release(row)
    manager.release(twin)
    manager.check_invariants()
    assert manager.stats().blocks_used == 0


def test_a_cut_behind_a_window_that_moved_on_is_refused() -> None:
    manager = paged(16, windows=[4], prefix_cache="none")
    content = Content(range(12), capacity=20)
    row = serve(manager, content)
    append(manager, row, 16)
    manager.truncate(row, 12)
    with pytest.raises(InternalError, match="window of 4 has moved on"):
        manager.truncate(row, 4)
    manager.check_invariants()


def test_a_window_with_a_host_tier_is_refused_with_a_way_out() -> None:
    with pytest.raises(CannotRunError, match="window") as raised:
        make_manager(CacheSettings(4, 8, 2, 32, (window_group(8),), prefix_cache="hash", host_blocks=2))
    assert raised.value.hint


@pytest.mark.parametrize("changes", [{"windows": [0]}, {"step_tokens": 0}, {"decode_tokens": 0}])
def test_windows_and_steps_hold_at_least_one_token(changes: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        paged(8, **changes)


def test_a_shared_window_does_not_use_up_its_owners_promise() -> None:
    """A and C share all that A's window reads, and C stands still while somebody else takes all that may be taken. What
    A lets go of does not come back, for C holds it too: A still gets every block that it was promised."""
    manager = paged(20, windows=[6], block_size=1, max_context=40, step_tokens=1, max_sequences=30)
    a = admit(manager, range(40), hold=1, promise_tokens=40).row
    manager.mark_computed(ints(a), ints(1))
    for end in range(2, 12):
        append(manager, a, end)
        manager.mark_computed(ints(a), ints(end))
    c = admit(manager, [*range(11), *range(100, 120)], hold=11, promise_tokens=31)
    assert c.cached_tokens == 11
    while manager.books.supply():
        serve(manager, [1000 + manager.books.supply()])
    for end in range(12, 41):
        append(manager, a, end)
        manager.mark_computed(ints(a), ints(end))
        manager.check_invariants()
    assert manager.books.claimed == 0


class PromisedRows:
    """Rows that grow within their promise, in steps no longer than the settings say, over a pool that newcomers fill to
    the brim. Prompts of three families share beginnings, so that rows hit blocks which others own."""

    def __init__(self, seed: int, policy: str) -> None:
        self.pick = random.Random(seed)
        self.step = self.pick.choice([None, 2, 3, 5])
        self.drafts = self.pick.choice([1, 1, 3])
        self.windows = self.pick.choice([[3], [6], [None, 5], [None, 2, 7]])
        sizes: dict[str, Any] = {
            "windows": self.windows, "block_size": self.pick.choice([1, 2, 4]), "max_context": 30, "max_sequences": 6,
            "step_tokens": self.step, "decode_tokens": self.drafts, "eviction": policy,
        }  # fmt: skip
        one = next(blocks for blocks in range(1, 200) if paged(blocks, **sizes).can_ever_fit(28))
        self.manager = paged(int(one * self.pick.uniform(1, 4)), **sizes)
        self.rows: dict[int, tuple[Content, int, int]] = {}

    def admit(self) -> None:
        if len(self.rows) == 6:
            return
        length, family = self.pick.randint(1, 20), self.pick.randrange(3)
        content = Content([*([family] * length), self.pick.randrange(2)][:20], capacity=30)
        promise = self.pick.choice([content.length, content.length, 28])
        hold = content.length if self.step is None else min(content.length, self.pick.randint(1, self.step))
        admission = admit(self.manager, content, hold=hold, promise_tokens=promise)
        if admission is not None:
            self.rows[admission.row] = (content, promise, content.length)

    def fill(self) -> None:
        """Somebody without a promise takes all that may be taken."""
        blocks = self.manager.books.supply() // len(self.windows)
        if blocks and len(self.rows) < 6:
            tokens = min(28, blocks * self.manager.settings.block_size)
            content = Content([self.pick.randrange(10**6) for _ in range(tokens)], capacity=30)
            self.rows[serve(self.manager, content)] = (content, 0, tokens)

    def grow(self) -> None:
        rows, ends = [], []
        for row, (content, promise, known) in self.rows.items():
            done = int(self.manager.books.tables.computed[row])
            if self.pick.random() < 0.3:
                continue
            step = (self.step or known) if done < known else self.pick.randint(1, self.drafts)
            end = min(done + step, known if done < known else promise)
            content.extend([1] * (end - content.length))
            if end > done:
                rows.append(row)
                ends.append(max(end, int(self.manager.books.tables.lengths[row])))
        if rows:
            plan = self.manager.plan_append(ints(*rows), ints(*ends))
            assert plan.fits, "a promise was broken"
            self.manager.commit_append(plan)
            self.manager.complete(self.manager.take_transfers())
            known_ends = [min(end, self.rows[row][0].length) for row, end in zip(rows, ends, strict=True)]
            self.manager.mark_computed(ints(*rows), ints(*known_ends))

    def leave(self) -> None:
        if self.rows:
            row = self.pick.choice(sorted(self.rows))
            self.manager.release(row)
            del self.rows[row]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_promise_within_the_steps_is_always_kept(policy: str) -> None:
    """Whatever is shared with whom, and however full the pool: growth that was promised fits."""
    for seed in range(40):
        rows = PromisedRows(seed, policy)
        for _ in range(60):
            rows.pick.choice([rows.admit, rows.admit, rows.fill, *[rows.grow] * 4, rows.leave])()
            rows.manager.check_invariants()


def test_keys_of_two_chains_stay_right_whatever_order_they_are_asked_in() -> None:
    fast, strong = KeyChain(4, b"n"), KeyChain(4, b"n", "sha256")
    content = Content(range(8), capacity=64)
    for end in range(8, 40, 4):
        content.extend(range(end, end + 4))
        block = content.length // 4 - 1
        assert content.key_and_bytes(strong, block)[0] == Content(range(end + 4)).keys(strong, block + 1)[block]
        assert content.key_and_bytes(fast, block)[0] == Content(range(end + 4)).keys(fast, block + 1)[block]
    twin = content.copy()
    content.truncate(9)
    content.extend([1, 2, 3])
    expected = Content([*range(9), 1, 2, 3])
    assert content.keys(strong, 3)[:3] == expected.keys(strong, 3)
    assert content.keys(fast, 3)[:3] == expected.keys(fast, 3)
    assert twin.keys(strong, 9)[8] == Content(range(36)).keys(strong, 9)[8]
