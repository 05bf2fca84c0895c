"""A history of operations on a paged manager, checked at each against a naive twin and a device of dictionaries.

`History` has plain methods; hypothesis and a seeded random walk both drive it.
"""

from __future__ import annotations

from typing import Any

import pytest

from kvbench.cache.content import Content
from kvbench.cache.pool import CACHED
from kvbench.cache.transfers import Transfers
from kvbench.errors import InternalError
from tests.cache.machines import Device, ints, paged

MAX_CONTEXT = 16
MAX_ROWS = 4
ENDLESS_HOST = 500


class Twin:
    """What a manager with endless memory would find: every full block ever computed, by salt and whole prefix."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.known: set[tuple[Any, ...]] = set()

    def publish(self, content: Content, computed: int) -> None:
        for end in range(self.block_size, computed + 1, self.block_size):
            self.known.add((content.salt, *content.tokens[:end].tolist()))

    def front_tokens(self, content: Content, end: int) -> int:
        """Of the block behind the first `end` tokens, the longest front that some known block there begins with."""
        own = (content.salt, *content.tokens[: min(end + self.block_size, content.length - 1)].tolist())
        depth = 1 + end
        found = 0
        for known in self.known:
            if len(known) == depth + self.block_size and known[:depth] == own[:depth]:
                pairs = zip(own[depth:], known[depth:], strict=False)
                found = max(found, sum(all(a == b for a, b in pairs_so_far) for pairs_so_far in fronts(list(pairs))))
        return found

    def hit_tokens(self, content: Content) -> int:
        end = 0
        while end + self.block_size < content.length:
            if (content.salt, *content.tokens[: end + self.block_size].tolist()) not in self.known:
                break
            end += self.block_size
        return end


def fronts(pairs: list[tuple[int, int]]) -> list[list[tuple[int, int]]]:
    return [pairs[: count + 1] for count in range(len(pairs))]


def snapshot(manager: Any) -> Any:
    """Everything that a plan must leave as it was, order of eviction included."""
    books = manager.books
    arrays = (books.pool.state, books.pool.refs, books.pool.free_stack[: books.pool.free], books.tables.blocks)
    arrays += (books.tables.freed, books.claims)
    host = list(books.below.host.order.order()) if books.below else None
    return manager.epoch, manager.stats(), books.policy.order(), host, [array.tobytes() for array in arrays]


class History:
    """Rows, their contents, the promises they hold, and what was copied and is not complete."""

    def __init__(
        self, *, block_size: int, num_blocks: int, windows: tuple[int | None, ...] = (None,), **settings: Any
    ) -> None:
        self.manager = paged(
            num_blocks,
            windows=windows,
            block_size=block_size,
            max_sequences=MAX_ROWS,
            max_context=MAX_CONTEXT,
            **settings,
        )
        self.finds_all = settings.get("hash_function") != "constant" or settings.get("prefix_cache") == "radix"
        self.caching = self.manager.settings.prefix_cache != "none"
        self.block_size, self.groups = block_size, len(windows)
        self.windows = windows
        self.slides = any(window is not None for window in windows)
        self.inside = settings.get("partial_block_reuse", False)
        self.rows: dict[int, Content] = {}
        self._forget_everything()

    def admit(self, content: Content, hold: int, promise: int = 0, readmission: bool = False) -> int | None:
        """Plan, check the plan, commit it if it fits; the new row."""
        if len(self.rows) == MAX_ROWS:
            return None
        before = snapshot(self.manager)
        plan = self.manager.plan(content, min(hold, content.length), promise, readmission=readmission)
        assert snapshot(self.manager) == before
        self._check_hits(content, plan.cached_tokens)
        promised = self._check_plan(plan)
        if not plan.fits:
            with pytest.raises(InternalError, match="refused"):
                self.manager.commit(plan)
            assert snapshot(self.manager) == before
            return None
        stats = before[1]
        row = int(self.manager.commit(plan).row)
        after = self.manager.stats()
        assert after.evictions - stats.evictions == plan.evict_blocks
        assert after.promoted_blocks - stats.promoted_blocks == plan.promote_blocks
        assert stats.blocks_free + stats.blocks_cached - after.blocks_free - after.blocks_cached >= plan.new_blocks
        if self.caching and not readmission:
            self.hits += plan.cached_tokens
            self.queries += content.length
        self.rows[row], self.promises[row] = content, promised
        with pytest.raises(InternalError, match="stale"):
            self.manager.commit(plan)
        return row

    def append(self, growth: dict[int, int], token: int) -> None:
        """Grow rows in one go, each by its own number of tokens."""
        lengths, needed = [], []
        for row, count in growth.items():
            content, assigned = self.rows[row], self.progress(row)[1]
            length = min(MAX_CONTEXT, assigned + count)
            content.extend([token] * (length - content.length))
            lengths.append(length)
            needed.append(self.groups * (self.blocks(length) - self.blocks(assigned)))
        before = snapshot(self.manager)
        plan = self.manager.plan_append(ints(*growth), ints(*lengths))
        assert snapshot(self.manager) == before
        copies = plan.new_blocks - sum(needed)
        assert 0 <= copies <= self.groups * len(growth)
        common = copies + sum(max(0, need - self.promises[row]) for need, row in zip(needed, growth, strict=True))
        missing = common - self.supply()
        assert (plan.fits, plan.shortfall_blocks) == (missing <= 0 or not common, max(0, missing) if common else 0)
        if not plan.fits:
            return
        self.manager.commit_append(plan)
        for row, need in zip(growth, needed, strict=True):
            self.promises[row] = max(0, self.promises[row] - need)

    def compute(self, ends: dict[int, int]) -> None:
        """One forward pass: copies first, then writes up to the given lengths, then reads, then progress."""
        self.carry_out()
        self.complete()
        for row, end in ends.items():
            self.device.write(self.manager, row, self.rows[row], self.progress(row)[0], end)
        for row, end in ends.items():
            self.device.assert_holds(self.manager, row, self.rows[row], end, self.progress(row)[0])
            if self.caching:
                self.twin.publish(self.rows[row], end)
        self.manager.mark_computed(ints(*ends), ints(*ends.values()))
        for row, end in ends.items():
            self.device.assert_holds(self.manager, row, self.rows[row], end)
        if self.slides:
            self._read_promises()

    def carry_out(self) -> None:
        transfers = self.manager.take_transfers()
        self.device.carry_out(transfers)
        self.copied.append(transfers)

    def complete(self) -> None:
        for transfers in self.copied:
            self.manager.complete(transfers)
        self.copied = []

    def fork(self, row: int) -> None:
        done, assigned = self.progress(row)
        content = self.rows[row].copy()
        content.truncate(done)
        if done < assigned:
            with pytest.raises(InternalError):
                self.manager.fork(row, content)
        elif done and len(self.rows) < MAX_ROWS:
            twin = self.manager.fork(row, content)
            self.rows[twin], self.promises[twin] = content, 0

    def truncate(self, row: int, length: int) -> None:
        self.carry_out()
        self.complete()
        before, held = self.manager.stats(), self.groups * self.blocks(self.progress(row)[1])
        done = self.progress(row)[0]
        if any(self.gone(window, min(done, length)) < self.gone(window, done) for window in self.windows):
            with pytest.raises(InternalError, match="window"):
                self.manager.truncate(row, length)
            return
        claimed = self.manager.books.claimed
        self.manager.truncate(row, length)
        self.rows[row].truncate(min(length, self.rows[row].length))
        after = self.manager.stats()
        returned = after.blocks_free + after.blocks_cached - before.blocks_free - before.blocks_cached
        claims_settled = claimed - self.manager.books.claimed
        again = (after.reserved_slots - before.reserved_slots) // self.block_size + claims_settled
        assert 0 <= again <= returned + claims_settled
        assert returned <= held - self.groups * self.blocks(length)
        self.promises[row] += again
        if self.slides:
            self._read_promises()

    def release(self, row: int) -> None:
        self.manager.release(row)
        del self.rows[row], self.promises[row]

    def reset(self) -> None:
        if self.rows:
            with pytest.raises(InternalError, match="still live"):
                self.manager.reset()
        for row in sorted(self.rows):
            self.release(row)
        self.manager.reset()
        self._forget_everything()
        assert self.manager.stats().blocks_free == self.manager.settings.num_blocks

    def check(self) -> None:
        """After every operation."""
        self.manager.check_invariants()
        stats = self.manager.stats()
        assert (stats.prefix_cache_hits, stats.prefix_cache_queries) == (self.hits, self.queries)
        claimed = self.manager.books.claimed
        assert stats.reserved_slots == self.block_size * (sum(self.promises.values()) + claimed)
        assert 0 <= stats.internal_slots <= self.groups * len(self.rows) * (self.block_size - 1)
        states = (stats.blocks_free, stats.blocks_cached, stats.blocks_used, stats.blocks_in_transfer)
        assert sum(states) == stats.blocks_total

    def finish(self) -> None:
        """Everything comes back."""
        self.carry_out()
        for row in sorted(self.rows):
            self.release(row)
        self.complete()
        self.check()
        stats = self.manager.stats()
        assert (stats.blocks_used, stats.blocks_in_transfer, stats.reserved_slots) == (0, 0, 0)
        below = self.manager.books.below
        assert below is None or not any(pins for tier in below.tiers.values() for pins in tier.pins)

    def progress(self, row: int) -> tuple[int, int]:
        """(computed, assigned) tokens."""
        tables = self.manager.books.tables
        return int(tables.computed[row]), int(tables.lengths[row])

    def blocks(self, tokens: int) -> int:
        return -(-tokens // self.block_size)

    def gone(self, window: int | None, computed: int) -> int:
        """Blocks that no query from position `computed` on reads."""
        positions = range(0 if window is None else computed - window + 1)
        return len(positions) // self.block_size

    def supply(self) -> int:
        stats = self.manager.stats()
        claimed = self.manager.books.claimed
        return stats.blocks_free + stats.blocks_cached - sum(self.promises.values()) - claimed

    def _check_hits(self, content: Content, found: int) -> None:
        known = self.twin.hit_tokens(content)
        if self.inside:
            self._check_front(content, found)
            found = found // self.block_size * self.block_size
        assert found <= known < content.length
        assert found % self.block_size == 0
        stats = self.manager.stats()
        nothing_lost = stats.evictions == 0 or stats.host_blocks_total == ENDLESS_HOST
        if nothing_lost and self.caching and self.finds_all:
            assert found == known

    def _check_front(self, content: Content, found: int) -> None:
        whole = found // self.block_size * self.block_size
        known = self.twin.front_tokens(content, whole)
        assert found - whole <= known
        assert found < content.length
        if (
            self.manager.stats().evictions == 0
            and self.finds_all
            and self.supply() > self.groups * (self.blocks(MAX_CONTEXT) + 1)
        ):
            assert found - whole == known

    def _check_plan(self, plan: Any) -> int:
        """Recount need and supply; the blocks that the plan promises."""
        growth = self.blocks(plan.promise_tokens) - self.blocks(plan.hold_tokens)
        promised = int(plan.detail.promised)
        assert promised <= self.groups * max(0, growth)
        assert self.slides or promised == self.groups * max(0, growth)
        pool = self.manager.books.pool
        hits = [block for group in plan.detail.groups for block in group.device.tolist()]
        sources = plan.detail.partial.sources.tolist()
        revived = sum(pool.state[block] == CACHED for block in (*hits, *sources))
        slid = [group for group, window in zip(plan.detail.groups, self.windows, strict=True) if window is not None]
        claimed = sum(int(pool.refs[block]) > 0 for group in slid for block in group.device.tolist())
        gone = [self.gone(window, plan.cached_tokens) for window in self.windows]
        assert plan.new_blocks == self.groups * self.blocks(plan.hold_tokens) - sum(gone) - len(hits)
        missing = plan.new_blocks + promised + revived + claimed - self.supply()
        assert (plan.fits, plan.shortfall_blocks) == (missing <= 0, max(0, missing))
        return promised

    def _read_promises(self) -> None:
        """Windows move promises with every step: what they must cover is checked in `test_windows.py`."""
        for row in self.promises:
            self.promises[row] = int(self.manager.books.tables.promised[row])

    def _forget_everything(self) -> None:
        self.twin = Twin(self.block_size)
        self.device = Device(self.block_size, self.groups)
        self.promises: dict[int, int] = {}
        self.copied: list[Transfers] = []
        self.hits = self.queries = 0
