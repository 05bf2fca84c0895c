"""ARC against a transcription of figure 4 of the paper (Megiddo and Modha, FAST 2003), and in the host tier."""

from __future__ import annotations

import random

import pytest

from kvbench.cache.arc import ArcOrder
from kvbench.cache.content import Content
from tests.cache.machines import admit, ints, paged, run_through


class PaperArc:
    """Lists, least recent first, exactly as the figure reads."""

    def __init__(self, c: int) -> None:
        self.c, self.p = c, 0.0
        self.t1: list[int] = []
        self.t2: list[int] = []
        self.b1: list[int] = []
        self.b2: list[int] = []

    def request(self, x: int) -> bool:
        """Whether it was a hit."""
        if x in self.t1 or x in self.t2:
            (self.t1 if x in self.t1 else self.t2).remove(x)
            self.t2.append(x)
            return True
        if x in self.b1:
            self.p = min(self.p + (1 if len(self.b1) >= len(self.b2) else len(self.b2) / len(self.b1)), self.c)
            self.replace(x)
            self.b1.remove(x)
            self.t2.append(x)
        elif x in self.b2:
            self.p = max(self.p - (1 if len(self.b2) >= len(self.b1) else len(self.b1) / len(self.b2)), 0)
            self.replace(x)
            self.b2.remove(x)
            self.t2.append(x)
        else:
            self.miss(x)
        return False

    def miss(self, x: int) -> None:
        ones = len(self.t1) + len(self.b1)
        total = ones + len(self.t2) + len(self.b2)
        if ones == self.c:
            if len(self.t1) < self.c:
                self.b1.pop(0)
                self.replace(x)
            else:
                self.t1.pop(0)
        elif total >= self.c:
            if total == 2 * self.c:
                self.b2.pop(0)
            self.replace(x)
        self.t1.append(x)

    def replace(self, x: int) -> None:
        if self.t1 and (len(self.t1) > self.p or (x in self.b2 and len(self.t1) == self.p)):
            self.b1.append(self.t1.pop(0))
        else:
            self.b2.append(self.t2.pop(0))


def ask(order: ArcOrder, name: int, pinned: frozenset[int] = frozenset()) -> bool:
    """One request as the tier makes it; block and name are the same number."""
    held = list(order.order())
    if name in held:
        order.used(name)
        return True
    if len(held) == order.capacity:
        victim = next((block for block in order.order(name) if block not in pinned), None)
        if victim is None:
            return False
        order.removed(victim, evicted=True)
    order.added(name, name)
    return False


def lists(order: ArcOrder) -> list[list[object]]:
    return [list(names) for names in (order.recent, order.frequent, order.recent_ghosts, order.frequent_ghosts)]


@pytest.mark.parametrize("capacity", [1, 2, 3, 5, 8, 16])
def test_all_four_lists_are_those_of_the_paper_after_every_request(capacity: int) -> None:
    for seed in range(20):
        pick = random.Random(seed)
        ours, paper = ArcOrder(capacity), PaperArc(capacity)
        for turn in range(600):
            scan = turn // 50 % 3 == 2
            name = 1000 + turn if scan else int(pick.paretovariate(0.6)) % (3 * capacity)
            assert ask(ours, name) == paper.request(name)
            assert lists(ours) == [paper.t1, paper.t2, paper.b1, paper.b2]
            assert ours.target == pytest.approx(paper.p)


def test_what_may_not_go_stays_and_the_lists_keep_their_bounds() -> None:
    for seed in range(30):
        pick = random.Random(seed)
        capacity = pick.randint(1, 9)
        order = ArcOrder(capacity)
        for _ in range(400):
            held = list(order.order())
            pinned = frozenset(pick.sample(held, pick.randint(0, len(held))))
            name = pick.randrange(3 * capacity)
            ask(order, name, pinned)
            assert pinned <= set(order.order())
            if pick.random() < 0.1 and (held := list(order.order())):
                order.removed(pick.choice(held), evicted=False)
            recent, frequent, recent_ghosts, frequent_ghosts = map(len, lists(order))
            assert recent + frequent <= capacity
            assert recent + recent_ghosts <= capacity
            assert recent + frequent + recent_ghosts + frequent_ghosts <= 2 * capacity
            names = [name for one in lists(order) for name in one]
            assert len(names) == len(set(names))
            assert 0 <= order.target <= capacity


def test_asking_changes_nothing() -> None:
    order = ArcOrder(2)
    for name in (1, 2, 3, 1):
        ask(order, name)
    before = lists(order), order.target
    assert sorted(order.order(2)) == [1, 3]
    assert (lists(order), order.target) == before


@pytest.mark.parametrize("host_eviction", ["lru", "arc"])
def test_a_scan_through_the_host_tier_evicts_what_is_used_twice_by_lru_only(host_eviction: str) -> None:
    """Device of 1 block, host of 4. One prompt is served twice, then twenty others pass once each."""
    manager = paged(1, host_blocks=4, host_eviction=host_eviction)
    hot = range(4)
    for start in (0, 50, 0, *range(100, 2100, 100)):
        run_through(manager, range(start, start + 4))
    assert ((0, _key(manager, hot)) in manager.books.below.host.blocks) == (host_eviction == "arc")


def _key(manager, tokens) -> bytes:
    return Content(tokens).keys(manager.books.chain, 1)[0]


def test_arc_keeps_the_tiers_books_in_order() -> None:
    manager = paged(3, host_blocks=5, host_eviction="arc")
    pick = random.Random(1)
    for _ in range(300):
        start = 100 * int(pick.paretovariate(0.7) % 9)
        row = admit(manager, range(start, start + 9)).row
        manager.complete(manager.take_transfers())
        manager.mark_computed(ints(row), ints(9))
        manager.release(row)
        manager.check_invariants()
    assert manager.stats().promoted_blocks > 0
