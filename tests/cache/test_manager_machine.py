"""Random histories of the paged manager against a naive twin and a token oracle."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvbench.cache.content import Content
from kvbench.cache.pool import CACHED
from kvbench.cache.types import Transfers
from kvbench.errors import InternalError
from tests.cache.machines import Device, ints, paged

MAX_CONTEXT = 16


class Twin:
    """What a manager with endless memory would find: every full block ever computed, by salt and whole prefix."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.known: set[tuple[Any, ...]] = set()

    def publish(self, content: Content, computed: int) -> None:
        for end in range(self.block_size, computed + 1, self.block_size):
            self.known.add((content.salt, *content.tokens[:end].tolist()))

    def hit_tokens(self, content: Content) -> int:
        end = 0
        while end + self.block_size < content.length:
            if (content.salt, *content.tokens[: end + self.block_size].tolist()) not in self.known:
                break
            end += self.block_size
        return end


def snapshot(manager: Any) -> Any:
    books = manager.books
    arrays = (books.pool.state, books.pool.refs, books.pool.free_stack[: books.pool.free], books.tables.blocks)
    host = list(books.host.blocks.items()) if books.host else None
    return manager.epoch, manager.stats(), books.policy.order(), host, [array.tobytes() for array in arrays]


class ManagerMachine(RuleBasedStateMachine):
    @initialize(
        block_size=st.integers(1, 4),
        num_blocks=st.integers(1, 14),
        groups=st.sampled_from([1, 1, 2]),
        cache=st.sampled_from(
            [
                {"prefix_cache": "none"},
                {"prefix_cache": "hash"},
                {"prefix_cache": "hash", "hash_function": "constant"},
                {"prefix_cache": "hash", "host_blocks": 1},
                {"prefix_cache": "hash", "host_blocks": 4},
                {"prefix_cache": "hash", "host_blocks": 200},
                {"prefix_cache": "hash", "host_blocks": 4, "hash_function": "constant"},
            ]
        ),
        eviction=st.sampled_from(["lru", "fifo"]),
    )
    def start(self, block_size: int, num_blocks: int, groups: int, cache: dict[str, Any], eviction: str) -> None:
        self.manager = paged(
            num_blocks,
            groups=groups,
            block_size=block_size,
            max_sequences=4,
            max_context=MAX_CONTEXT,
            eviction=eviction,
            **cache,
        )
        self.collides = cache.get("hash_function") == "constant"
        self.caching = cache["prefix_cache"] == "hash"
        self.block_size, self.groups = block_size, groups
        self.device = Device(block_size, groups)
        self.rows: dict[int, Content] = {}
        self.events: dict[tuple[Any, ...], int] = {}
        self.copied: list[Transfers] = []
        self.forget_everything()

    def forget_everything(self) -> None:
        self.twin = Twin(self.block_size)
        self.promises: dict[int, int] = {}
        self.copied = []
        self.expected_hits = self.expected_queries = 0

    # ---- admission ----

    @rule(
        tokens=st.lists(st.integers(0, 1), min_size=1, max_size=MAX_CONTEXT),
        salt=st.sampled_from([None, None, "", "s"]),
        hold=st.integers(0, MAX_CONTEXT),
        promise=st.sampled_from([0, 0, 0, 5, 9, MAX_CONTEXT]),
        readmission=st.booleans(),
    )
    def admit(self, tokens: list[int], salt: str | None, hold: int, promise: int, readmission: bool) -> None:
        self.try_admission(Content(tokens, salt=salt), hold, promise, readmission)

    @precondition(lambda self: self.rows)
    @rule(data=st.data(), extra=st.lists(st.integers(0, 1), max_size=4), whole=st.booleans())
    def admit_relative(self, data: st.DataObject, extra: list[int], whole: bool) -> None:
        known = self.rows[data.draw(st.sampled_from(sorted(self.rows)))]
        keep = known.length if whole else data.draw(st.integers(1, known.length))
        tokens = [*known.tokens[:keep].tolist(), *extra][:MAX_CONTEXT]
        self.try_admission(Content(tokens, salt=known.salt), len(tokens), 0, False)

    def try_admission(self, content: Content, hold: int, promise: int, readmission: bool) -> None:
        if len(self.rows) == 4:
            return
        before = snapshot(self.manager)
        plan = self.manager.plan(content, min(hold, content.length), promise, readmission=readmission)
        assert snapshot(self.manager) == before
        self.check_hits(content, plan.cached_tokens)
        stats = self.manager.stats()
        promised_blocks = self.groups * max(0, self.blocks(promise) - self.blocks(plan.hold_tokens))
        supply = stats.blocks_free + stats.blocks_cached - sum(self.promises.values())
        hits = [block for group in plan.detail.groups for block in group.device.tolist()]
        revived = sum(self.manager.books.pool.state[block] == CACHED for block in hits)
        assert plan.new_blocks == self.groups * self.blocks(plan.hold_tokens) - len(hits)
        missing = plan.new_blocks + promised_blocks + revived - supply
        assert (plan.fits, plan.shortfall_blocks) == (missing <= 0, max(0, missing))
        if not plan.fits:
            with pytest.raises(InternalError, match="refused"):
                self.manager.commit(plan)
            assert snapshot(self.manager) == before
            return
        admission = self.manager.commit(plan)
        after = self.manager.stats()
        assert admission.cached_tokens == plan.cached_tokens
        assert after.evictions - stats.evictions == plan.evict_blocks
        assert after.promoted_blocks - stats.promoted_blocks == plan.promote_blocks
        assert (
            after.blocks_used + after.blocks_in_transfer - stats.blocks_used - stats.blocks_in_transfer
            >= plan.new_blocks
        )
        if not readmission and self.caching:
            self.expected_hits += plan.cached_tokens
            self.expected_queries += content.length
        self.rows[admission.row] = content
        self.promises[admission.row] = promised_blocks
        with pytest.raises(InternalError, match="stale"):
            self.manager.commit(plan)

    def check_hits(self, content: Content, found: int) -> None:
        known = self.twin.hit_tokens(content)
        assert found <= known < max(content.length, 1)
        assert found % self.block_size == 0
        stats = self.manager.stats()
        lossless = stats.evictions == 0 or stats.host_blocks_total == 200
        if lossless and self.caching and not self.collides:
            assert found == known

    def blocks(self, tokens: int) -> int:
        return -(-tokens // self.block_size)

    # ---- a step: copies, forward, progress ----

    def copy_now(self) -> None:
        transfers = self.manager.take_transfers()
        self.device.carry_out(transfers)
        self.copied.append(transfers)

    @rule()
    def carry_out(self) -> None:
        self.copy_now()

    @rule()
    def complete(self) -> None:
        for transfers in self.copied:
            self.manager.complete(transfers)
        self.copied = []

    @precondition(lambda self: self.rows)
    @rule(data=st.data())
    def forward(self, data: st.DataObject) -> None:
        """Compute some of the assigned slots of some rows, in one call."""
        self.copy_now()
        self.complete()
        rows, lengths = [], []
        for row, content in self.rows.items():
            done, assigned = self.progress(row)
            end = data.draw(st.integers(done, min(assigned, content.length)))
            self.device.write(self.manager, row, content, done, end)
            rows.append(row)
            lengths.append(end)
        for row, end in zip(rows, lengths, strict=True):
            self.device.assert_holds(self.manager, row, self.rows[row], end)
            if self.caching:
                self.twin.publish(self.rows[row], end)
        self.manager.mark_computed(ints(*rows), ints(*lengths))

    def progress(self, row: int) -> tuple[int, int]:
        tables = self.manager.books.tables
        return int(tables.computed[row]), int(tables.lengths[row])

    @precondition(lambda self: self.rows)
    @rule(data=st.data(), token=st.integers(0, 1))
    def append(self, data: st.DataObject, token: int) -> None:
        """Grow a random set of rows in one go, by one token or more."""
        rows = data.draw(st.lists(st.sampled_from(sorted(self.rows)), unique=True, min_size=1))
        lengths, needed = [], []
        for row in rows:
            content, (_, assigned) = self.rows[row], self.progress(row)
            length = min(MAX_CONTEXT, assigned + data.draw(st.sampled_from([1, 1, 1, 0, 3])))
            if length > content.length:
                content.extend([token] * (length - content.length))
            lengths.append(length)
            needed.append(self.groups * (self.blocks(length) - self.blocks(assigned)))
        before = snapshot(self.manager)
        plan = self.manager.plan_append(ints(*rows), ints(*lengths))
        assert snapshot(self.manager) == before
        copies = plan.new_blocks - sum(needed)
        assert 0 <= copies <= self.groups * len(rows)
        common = copies + sum(max(0, need - self.promises[row]) for need, row in zip(needed, rows, strict=True))
        stats = self.manager.stats()
        supply = stats.blocks_free + stats.blocks_cached - sum(self.promises.values())
        assert plan.fits == (common <= supply)
        if not plan.fits:
            assert plan.shortfall_blocks == common - supply
            return
        self.manager.commit_append(plan)
        for row, need in zip(rows, needed, strict=True):
            self.promises[row] = max(0, self.promises[row] - need)

    # ---- fork, truncate, release, reset ----

    @precondition(lambda self: 0 < len(self.rows) < 4)
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        row = data.draw(st.sampled_from(sorted(self.rows)))
        content = self.rows[row].copy()
        done, assigned = self.progress(row)
        content.truncate(done)
        if done < assigned:
            with pytest.raises(InternalError):
                self.manager.fork(row, content)
            return
        if not done:
            return
        twin = self.manager.fork(row, content)
        self.rows[twin] = content
        self.promises[twin] = 0

    @precondition(lambda self: self.rows)
    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        self.copy_now()
        self.complete()
        row = data.draw(st.sampled_from(sorted(self.rows)))
        length = data.draw(st.integers(1, max(1, self.progress(row)[1])))
        if length > self.progress(row)[1]:
            return
        stats = self.manager.stats()
        held = self.groups * self.blocks(self.progress(row)[1])
        self.manager.truncate(row, length)
        if length < self.rows[row].length:
            self.rows[row].truncate(length)
        after = self.manager.stats()
        returned = after.blocks_free + after.blocks_cached - stats.blocks_free - stats.blocks_cached
        assert returned <= held - self.groups * self.blocks(length)
        self.promises[row] = int(self.manager.books.tables.promised[row])

    @precondition(lambda self: self.rows)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        row = data.draw(st.sampled_from(sorted(self.rows)))
        self.manager.release(row)
        del self.rows[row], self.promises[row]

    @rule(data=st.data())
    def reset(self, data: st.DataObject) -> None:
        if self.rows:
            with pytest.raises(InternalError, match="still live"):
                self.manager.reset()
            if data.draw(st.integers(0, 3)):
                return
            for row in sorted(self.rows):
                self.manager.release(row)
            self.rows = {}
        self.manager.reset()
        self.device = Device(self.block_size, self.groups)
        self.forget_everything()
        assert self.manager.stats().blocks_free == self.manager.settings.num_blocks

    # ---- after every step ----

    @invariant()
    def the_books_add_up(self) -> None:
        if not hasattr(self, "manager"):
            return
        self.manager.check_invariants()
        stats = self.manager.stats()
        assert stats.prefix_cache_hits == self.expected_hits
        assert stats.prefix_cache_queries == self.expected_queries
        assert stats.reserved_slots == self.block_size * sum(self.promises.values())
        assert 0 <= stats.internal_slots <= self.groups * len(self.rows) * (self.block_size - 1)
        total = stats.blocks_free + stats.blocks_cached + stats.blocks_used + stats.blocks_in_transfer
        assert total == stats.blocks_total

    def teardown(self) -> None:
        if not hasattr(self, "manager"):
            return
        self.copy_now()
        for row in sorted(self.rows):
            self.manager.release(row)
        self.complete()
        stats = self.manager.stats()
        assert (stats.blocks_used, stats.blocks_in_transfer, stats.reserved_slots) == (0, 0, 0)
        self.manager.check_invariants()


ManagerMachine.TestCase.settings = hypothesis_settings(max_examples=150, stateful_step_count=40, deadline=None)
TestManager = ManagerMachine.TestCase
