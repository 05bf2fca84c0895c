"""A cache manager of dicts and lists: slow, obvious, and the oracle for the scheduler's tests.

Paged, one group, optional prefix reuse keyed by the whole prefix itself, LRU eviction; no host tier, no forks.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from kvbench.cache.content import Content
from kvbench.cache.swap import Swapped
from kvbench.cache.transfers import Transfers
from kvbench.cache.types import Admission, AppendPlan, CacheSettings, CacheStats, Int32s, Int64s, Plan, WithoutTiers
from kvbench.errors import InternalError

Key = tuple[str | None, tuple[int, ...]]


@dataclass
class Row:
    content: Content
    blocks: list[int]
    length: int
    promised: int
    """Blocks set aside beyond those held."""
    computed: int = 0


@dataclass
class NaiveManager(WithoutTiers):
    settings: CacheSettings
    rows: dict[int, Row] = field(default_factory=dict)
    free: list[int] = field(default_factory=list)
    cached: OrderedDict[int, None] = field(default_factory=OrderedDict)
    owners: dict[int, int] = field(default_factory=dict)
    index: dict[Key, int] = field(default_factory=dict)
    keys: dict[int, Key] = field(default_factory=dict)
    hits: dict[int, int] = field(default_factory=dict)
    counters: CacheStats = field(default_factory=CacheStats)
    listener: Callable[[str, bytes], None] | None = None

    def __post_init__(self) -> None:
        self.free = list(range(self.settings.num_blocks, 0, -1))

    def _blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.settings.block_size)

    @property
    def _promised(self) -> int:
        return sum(row.promised for row in self.rows.values())

    def _hits(self, content: Content) -> list[int]:
        if self.settings.prefix_cache == "none":
            return []
        size, hits = self.settings.block_size, []
        for end in range(size, content.length, size):
            block = self.index.get((content.salt, tuple(content.tokens[:end].tolist())))
            if block is None:
                break
            hits.append(block)
        return hits

    def plan(
        self,
        content: Content,
        hold_tokens: int,
        promise_tokens: int = 0,
        *,
        readmission: bool = False,
        fork_blocks: int = 0,
        swapped: Swapped | None = None,
    ) -> Plan:
        assert not fork_blocks
        hits = self._hits(content)
        cached_tokens = len(hits) * self.settings.block_size
        hold = max(hold_tokens, cached_tokens)
        new = self._blocks_for(hold) - len(hits)
        later = max(0, self._blocks_for(promise_tokens) - self._blocks_for(hold))
        supply = len(self.free) + sum(block not in hits for block in self.cached) - self._promised
        short = max(0, new + later - supply)
        evict = max(0, new - len(self.free))
        detail, spare = (hits, later, readmission), max(0, supply - new - later)
        return Plan(content, not short, cached_tokens, hold, promise_tokens, new, 0, evict, short, 0, detail, spare)

    def commit(self, plan: Plan) -> Admission:
        assert plan.fits
        assert isinstance(plan.detail, tuple)
        hits, later, readmission = plan.detail
        row = min(set(range(self.settings.max_sequences)) - set(self.rows))
        for block in hits:
            self.cached.pop(block, None)
            self.hits[block] = self.hits.get(block, 0) + 1
            self.owners[block] = self.owners.get(block, 0) + 1
        blocks = hits + [self._take() for _ in range(plan.new_blocks)]
        self.rows[row] = Row(plan.content, blocks, plan.hold_tokens, later, plan.cached_tokens)
        if self.settings.prefix_cache != "none":
            if readmission:
                self.counters.readmission_queries += plan.content.length
                self.counters.readmission_hits += plan.cached_tokens
            else:
                self.counters.prefix_cache_queries += plan.content.length
                self.counters.prefix_cache_hits += plan.cached_tokens
        return Admission(row, plan.cached_tokens, 0)

    def _take(self) -> int:
        if not self.free:
            block, _ = self.cached.popitem(last=False)
            del self.index[self.keys.pop(block)]
            self.hits.pop(block, None)
            self.counters.evictions += 1
            self.free.append(block)
        block = self.free.pop()
        self.owners[block] = 1
        return block

    def can_ever_fit(self, tokens: int) -> bool:
        return self._blocks_for(tokens) <= self.settings.num_blocks

    def plan_append(self, rows: Int32s, new_lengths: Int32s) -> AppendPlan:
        needs = {}
        for index, length in zip(rows.tolist(), new_lengths.tolist(), strict=True):
            needs[index] = max(0, self._blocks_for(length) - len(self.rows[index].blocks))
        common = sum(max(0, need - self.rows[index].promised) for index, need in needs.items())
        short = max(0, common - (len(self.free) + len(self.cached) - self._promised))
        return AppendPlan(rows, new_lengths, not short, sum(needs.values()), short, 0, needs)

    def commit_append(self, plan: AppendPlan) -> None:
        assert plan.fits
        assert isinstance(plan.detail, dict)
        for index, length in zip(plan.rows.tolist(), plan.new_lengths.tolist(), strict=True):
            row, need = self.rows[index], plan.detail[index]
            row.promised = max(0, row.promised - need)
            row.blocks += [self._take() for _ in range(need)]
            row.length = max(row.length, length)

    def slots(self, rows: Int32s, starts: Int32s, counts: Int32s, group: int = 0) -> Int64s:
        size, found = self.settings.block_size, []
        for index, start, count in zip(rows.tolist(), starts.tolist(), counts.tolist(), strict=True):
            row = self.rows[index]
            assert start + count <= row.length, "a slot that was never allocated"
            found += [row.blocks[at // size] * size + at % size for at in range(start, start + count)]
        return np.array(found, np.int64)

    def table(self, rows: Int32s, width: int, group: int = 0) -> Int32s:
        tables = [(self.rows[index].blocks + [0] * width)[:width] for index in rows.tolist()]
        return np.array(tables, np.int32).reshape(len(rows), width)

    def mark_computed(self, rows: Int32s, lengths: Int32s) -> None:
        size = self.settings.block_size
        for index, length in zip(rows.tolist(), lengths.tolist(), strict=True):
            row = self.rows[index]
            assert row.computed <= length <= row.length <= len(row.blocks) * size
            row.computed = length
            for number in range(length // size if self.settings.prefix_cache != "none" else 0):
                key = (row.content.salt, tuple(row.content.tokens[: (number + 1) * size].tolist()))
                if key not in self.index:
                    self.index[key] = row.blocks[number]
                    self.keys[row.blocks[number]] = key

    def release(self, row: int) -> None:
        for block in reversed(self.rows.pop(row).blocks):
            self.owners[block] -= 1
            if self.owners[block] == 0:
                del self.owners[block]
                if block in self.keys:
                    self.cached[block] = None
                else:
                    self.free.append(block)

    def references(self, row: int) -> float:
        found = [self.owners[block] - 1 + self.hits.get(block, 0) for block in self.rows[row].blocks]
        return sum(found) / len(found) if found else 0.0

    def peak_blocks(self, row: int) -> int:
        return len(self.rows[row].blocks)

    def take_transfers(self) -> Transfers:
        return Transfers()

    def complete(self, transfers: Transfers) -> list[int]:
        assert not transfers
        return []

    def stats(self) -> CacheStats:
        slots = sum(len(row.blocks) for row in self.rows.values()) * self.settings.block_size
        live = sum(row.computed for row in self.rows.values())
        return CacheStats(
            blocks_total=self.settings.num_blocks,
            blocks_free=len(self.free),
            blocks_cached=len(self.cached),
            blocks_used=len(self.owners),
            live_cached_tokens=live,
            internal_slots=slots - live,
            reserved_slots=self._promised * self.settings.block_size,
            evictions=self.counters.evictions,
            prefix_cache_queries=self.counters.prefix_cache_queries,
            prefix_cache_hits=self.counters.prefix_cache_hits,
            readmission_queries=self.counters.readmission_queries,
            readmission_hits=self.counters.readmission_hits,
        )

    def reset(self) -> None:
        assert not self.rows
        self.__init__(self.settings)  # type: ignore[misc]

    def fork_blocks(self, length: int, promise_tokens: int) -> int:
        raise InternalError("the naive manager does not fork")

    def fork(self, row: int, content: Content, promise_tokens: int = 0) -> int:
        raise InternalError("the naive manager does not fork")

    def reorder(self, rows: Int32s, parents: Int32s, contents: Sequence[Content]) -> None:
        raise InternalError("the naive manager does not fork")

    def truncate(self, row: int, length: int) -> None:
        raise InternalError("the naive manager does not truncate")

    def check_invariants(self) -> None:
        states = [*self.free, *self.cached, *self.owners]
        assert sorted(states) == list(range(1, self.settings.num_blocks + 1))
        counted: dict[int, int] = {}
        for row in self.rows.values():
            for block in row.blocks:
                counted[block] = counted.get(block, 0) + 1
        assert counted == self.owners
        assert self._promised <= len(self.free) + len(self.cached)
        assert set(self.cached) <= set(self.keys)
        assert {key: block for block, key in self.keys.items()} == self.index
