"""The order of eviction against lists that are searched from the front."""

from __future__ import annotations

import random

import pytest

from kvbench.cache.content import Content
from tests.cache.machines import admit, ints, paged


class NaiveCache:
    """One sequence at a time, block size 1: contents as prefixes, evicted by brute force."""

    def __init__(self, num_blocks: int, policy: str) -> None:
        self.num_blocks, self.policy = num_blocks, policy
        self.cached: list[tuple[int, ...]] = []
        """LRU: least recently used first. FIFO: oldest publication first."""

    def serve(self, prompt: tuple[int, ...]) -> list[tuple[int, ...]]:
        """The contents that had to go, in order."""
        chain = [prompt[: end + 1] for end in range(len(prompt))]
        hits = []
        for content in chain[:-1]:
            if content not in self.cached:
                break
            hits.append(content)
        idle = [content for content in self.cached if content not in hits]
        gone = []
        copies = [content for content in chain[len(hits) :] if content in self.cached]
        for _ in range(max(0, len(chain) - len(hits) - (self.num_blocks - len(self.cached)))):
            gone.append(self.victim(idle))
            idle.remove(gone[-1])
            self.cached.remove(gone[-1])
        assert all(content in gone or content == chain[-1] for content in copies)
        fresh = [content for content in chain if content not in self.cached]
        if self.policy == "fifo":
            self.cached += fresh
        else:
            self.cached = [content for content in self.cached if content not in chain] + chain[::-1]
        return gone

    def victim(self, idle: list[tuple[int, ...]]) -> tuple[int, ...]:
        if self.policy == "lru":
            return idle[0]
        return next(one for one in idle if not any(other[:-1] == one for other in self.cached if other != one))


@pytest.mark.parametrize("policy", ["lru", "fifo"])
def test_victims_are_those_of_a_naive_list(policy: str) -> None:
    for seed in range(30):
        pick = random.Random(seed)
        manager = paged(pick.randint(5, 12), block_size=1, eviction=policy)
        naive = NaiveCache(manager.settings.num_blocks, policy)
        chain, names = manager.books.chain, {}
        removed: list[bytes] = []
        manager.listener = lambda event, key, removed=removed: removed.append(key) if event == "removed" else None
        for turn in range(120):
            # the last token is new each time, so that a fully cached prompt never makes a second copy
            prompt = (*(pick.randrange(2) for _ in range(pick.randint(1, 3))), 1000 + turn)
            for end in range(1, len(prompt) + 1):
                names[Content(prompt[:end]).keys(chain, end)[-1]] = prompt[:end]
            removed.clear()
            row = admit(manager, prompt).row
            manager.mark_computed(ints(row), ints(len(prompt)))
            manager.release(row)
            assert [names[key] for key in removed] == naive.serve(prompt), (seed, turn)
            manager.check_invariants()


def test_the_log_of_releases_stays_within_twice_the_pool() -> None:
    manager = paged(16)
    for turn in range(400):
        row = admit(manager, [turn % 3] * 13).row
        manager.mark_computed(ints(row), ints(13))
        manager.release(row)
    policy = manager.books.policy
    assert len(policy._log) <= 2 * 16 + 64
    assert policy._tail <= len(policy._log)
    manager.check_invariants()


def test_the_fifo_heap_holds_one_entry_per_block() -> None:
    manager = paged(16, eviction="fifo")
    for turn in range(400):
        row = admit(manager, [turn % 3] * 13).row
        manager.mark_computed(ints(row), ints(13))
        manager.release(row)
    assert len(manager.books.policy._heap) <= 16


def test_fifo_takes_the_oldest_as_soon_as_a_second_copy_frees_it() -> None:
    """A chain of three loses its leaf; then its first block gets a second copy, and is the oldest that may go."""
    manager = paged(5, block_size=4, eviction="fifo")
    row = admit(manager, range(12)).row
    manager.mark_computed(ints(row), ints(12))
    oldest = int(manager.table(ints(row), 1)[0, 0])
    manager.release(row)
    manager.release(admit(manager, range(50, 62)).row)
    assert manager.stats().evictions == 1
    copy = admit(manager, range(4)).row
    manager.mark_computed(ints(copy), ints(4))
    taken = admit(manager, range(70, 82)).row
    assert oldest in manager.table(ints(taken), 3)[0]
    assert manager.plan(Content(range(9)), 4).cached_tokens == 8
    manager.check_invariants()
