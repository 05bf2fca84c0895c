"""Eviction policies that scan everything, and a policy that asks both the real and the naive one.

The naive one keeps what happened to every block and knows no key, no heap and no counter that goes up or down by one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kvbench.cache.eviction.policy import EVICTION_POLICIES, make_policy
from kvbench.cache.pool import CACHED

if TYPE_CHECKING:
    from kvbench.cache.pool import BlockPool
    from kvbench.cache.types import CacheSettings, Int64s


class NaivePolicy:
    """The order of victims from first principles."""

    def __init__(self, settings: CacheSettings, pool: BlockPool) -> None:
        self.settings, self.pool = settings, pool
        self.known: dict[int, tuple[int, int]] = {}
        """Published block → (content, parent), oldest first"""
        self.releases: list[list[int]] = []
        self.log: list[tuple[str, int]] = []
        """("hit" or "used at priority p", content), in order; forgotten with the content"""
        self.coming: dict[int, int] = {}

    def victim(self) -> int | None:
        cached = [block for block in self.known if self.pool.state[block] == CACHED]
        able = [block for block in cached if not self.cut_off(block)]
        most = max(map(self.references, cached)) if able and self.settings.eviction.endswith("lrc-age") else 0
        return min(able, key=lambda block: self.rank(block, most)) if able else None

    def cut_off(self, block: int) -> list[int]:
        """Published blocks that no look-up could reach any more if this one went alone."""
        content = self.known[block][0]
        if any(other != block and found[0] == content for other, found in self.known.items()):
            return []
        lost = [content]
        for one in lost:
            lost += [child for child, parent in set(self.known.values()) if parent == one]
        return [other for other, found in self.known.items() if found[0] in lost and other != block]

    def references(self, block: int) -> int:
        return len(self.cut_off(block)) + self.hits(block)

    def rank(self, block: int, most: int) -> tuple[Any, ...]:
        """The one with the least rank goes. `most`: the largest number of references of a cached block."""
        settings, name = self.settings, self.settings.eviction.removeprefix("checked ")
        hits, content = self.hits(block), self.known[block][0]
        if name == "fifo":
            return (list(self.known).index(block),)
        if name == "lfu":
            return hits, self.last_use(block)
        if name == "lrc":
            return self.references(block), -self.depth(content), self.last_use(block)
        if name == "lrc-age":
            age = len(self.releases) - self.last_use(block)[0]
            missing = most - self.references(block)
            return -(settings.lrc_alpha * missing + settings.lrc_beta * age), self.last_use(block)
        if name == "priority":
            return max(int(what[1:]) for what, of in self.log if of == content and what[0] == "p"), self.last_use(block)
        return (self.last_use(block),)

    def hits(self, block: int) -> int:
        return self.log.count(("hit", self.known[block][0]))

    def depth(self, content: int) -> int:
        parents = dict(self.known.values())
        return 1 + self.depth(parents[content]) if parents.get(content, 0) > 0 else 0

    def last_use(self, block: int) -> tuple[int, int]:
        at = max(number for number, released in enumerate(self.releases) if block in released)
        return at, self.releases[at].index(block)

    def add(self, blocks: Int64s) -> None:
        self.releases.append(blocks.tolist())

    def forget(self, blocks: Int64s) -> None:
        self.log += [("hit", self.known[block][0]) for block in blocks.tolist()]

    def used_by(self, priority: int, blocks: Int64s) -> None:
        for block in blocks.tolist():
            if block in self.known:
                self.log.append((f"p{priority}", self.known[block][0]))
            else:
                self.coming[block] = priority

    def published(self, block: int, content: int, parent: int) -> None:
        self.known[block] = (content, parent)
        self.log.append((f"p{self.coming.pop(block, 0)}", content))

    def gone(self, block: int) -> None:
        content = self.known.pop(block)[0]
        if all(found[0] != content for found in self.known.values()):
            self.log = [entry for entry in self.log if entry[1] != content]
        self.releases = [[other for other in released if other != block] for released in self.releases]


class Checked:
    """The real policy, every victim of which must be the naive one's."""

    watches_contents = True
    watches_priority = True

    def __init__(self, settings: CacheSettings, pool: BlockPool) -> None:
        name = settings.eviction.removeprefix("checked ")
        self.real: Any = make_policy(settings, pool, name)
        self.naive = NaivePolicy(settings, pool)
        self.victims = 0

    def add(self, blocks: Int64s) -> None:
        self.real.add(blocks)
        self.naive.add(blocks)

    def forget(self, blocks: Int64s) -> None:
        self.real.forget(blocks)
        self.naive.forget(blocks)

    def used_by(self, priority: int, blocks: Int64s) -> None:
        self.real.used_by(priority, blocks)
        self.naive.used_by(priority, blocks)

    def published(self, block: int, content: int, parent: int) -> None:
        self.real.published(block, content, parent)
        self.naive.published(block, content, parent)

    def take(self, count: int) -> Int64s:
        taken = []
        for _ in range(count):
            expected, found = self.naive.victim(), self.real.take(1).tolist()
            assert found == ([] if expected is None else [expected]), (found, expected)
            for block in found:
                self.naive.gone(block)
            taken += found
            self.victims += len(found)
        return np.array(taken, dtype=np.int64)

    def order(self) -> list[int]:
        order: list[int] = self.real.order()
        return order


for policy in list(EVICTION_POLICIES):
    EVICTION_POLICIES[f"checked {policy}"] = "tests.cache.naive_eviction:Checked"
