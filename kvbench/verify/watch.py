"""A cache manager under observation: refuses what a fault says, and holds every row's blocks against the oracle."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from kvbench.errors import InternalError
from kvbench.verify.chain import Links
from kvbench.verify.inside import pool_of, tables_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvbench.cache.content import Content
    from kvbench.cache.tables import BlockTables
    from kvbench.cache.transfers import Transfers
    from kvbench.cache.types import Admission, AppendPlan, CacheManager, Int32s, Plan
    from kvbench.verify.oracle import OracleDevice


@dataclass(slots=True)
class Refusals:
    """Allocation failures that are still to be injected."""

    admissions: int = 0
    growths: int = 0
    injected: int = 0


class Watch:
    """Stands where the manager stands. What it does not mention goes through to the manager itself."""

    def __init__(self, manager: CacheManager, device: OracleDevice) -> None:
        self.manager = manager
        self.device = device
        self.refusals = Refusals()
        self.may_refuse: Callable[[Int32s], bool] = lambda rows: False
        """Whether growth of these rows may be refused: theirs was not promised, and somebody else can make room"""
        self._links: dict[int, Links] = {}
        self._computed: set[tuple[str | None, int]] = set()
        """(salt, number) of every position whose KV was ever computed: what a hit may find"""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.manager, name)

    def plan(self, content: Content, hold_tokens: int, promise_tokens: int = 0, **options: Any) -> Plan:
        plan = self.manager.plan(content, hold_tokens, promise_tokens, **options)
        if self.refusals.admissions and plan.fits and self._tables().live.any():
            self.refusals.admissions -= 1
            self.refusals.injected += 1
            return replace(plan, fits=False, shortfall_blocks=1)
        return plan

    def plan_append(self, rows: Int32s, new_lengths: Int32s) -> AppendPlan:
        plan = self.manager.plan_append(rows, new_lengths)
        if self.refusals.growths and plan.fits and self.may_refuse(rows):
            self.refusals.growths -= 1
            self.refusals.injected += 1
            return replace(plan, fits=False, shortfall_blocks=1)
        return plan

    def commit(self, plan: Plan) -> Admission:
        self._check_hit(plan)
        return self.manager.commit(plan)

    def take_transfers(self) -> Transfers:
        """The step is scheduled and nothing of it is written yet: the books must add up here too."""
        self.manager.check_invariants()
        return self.manager.take_transfers()

    def mark_computed(self, rows: Int32s, lengths: Int32s) -> None:
        """The step's KV is written: remember it, then look at it before anything can be released."""
        before = self._tables().computed[rows].tolist()
        self.manager.mark_computed(rows, lengths)
        for row, first, end in zip(rows.tolist(), before, lengths.tolist(), strict=True):
            content = self._content(row)
            links = self._links_of(row, content, end)
            self._computed.update((content.salt, link) for link in links[first:].tolist())
            self.check_row(row)

    def check_rows(self) -> None:
        """Every position that a live row may still read holds that row's own KV, and every published block the tokens
        that it is published for."""
        self._check_published()
        for row in np.flatnonzero(self._tables().live).tolist():
            self.check_row(row)

    def check_row(self, row: int) -> None:
        tables = self._tables()
        end = int(tables.computed[row])
        if not end:
            return
        content = self._content(row)
        links, tokens = self._links_of(row, content, end), content.tokens[:end]
        for group, kind in enumerate(self.manager.settings.groups):
            first = 0 if kind.window is None else max(0, end - kind.window + 1)
            table = tables.blocks[group, row].astype(np.int64)
            stored, stored_tokens = self.device.stored(table, group, first, end)
            wrong = (stored != links[first:]) | (stored_tokens != tokens[first:])
            if wrong.any() and not self._in_transfer(table[(first + np.flatnonzero(wrong)) // self.device.block_size]):
                at = first + int(np.argmax(wrong))
                block = int(table[at // self.device.block_size])
                raise InternalError(f"row {row}, group {group}: block {block} does not hold the KV of position {at}")

    def _check_published(self) -> None:
        books = getattr(self.manager, "books", None)
        if books is None or not books.caching:
            return
        known = np.flatnonzero((books.pool.content_ids != 0) & (books.pool.pins == 0))
        wrong = (self.device.tokens[known] != books.labels.tokens[known]).any(axis=1)
        if wrong.any():
            raise InternalError(f"block {int(known[wrong][0])} does not hold the tokens that it is published for")

    def _in_transfer(self, blocks: Any) -> bool:
        pool = pool_of(self.manager)
        return pool is not None and bool((pool.pins[blocks] > 0).all())

    def _check_hit(self, plan: Plan) -> None:
        if not plan.cached_tokens:
            return
        if plan.cached_tokens >= plan.content.length:
            raise InternalError(f"all {plan.content.length} tokens of a prompt are hits: none is left to compute")
        last = int(Links().of(plan.content.tokens[: plan.cached_tokens])[-1])
        if (plan.content.salt, last) not in self._computed:
            raise InternalError(
                f"a hit of {plan.cached_tokens} tokens under salt {plan.content.salt!r} that nobody computed"
            )

    def _links_of(self, row: int, content: Content, end: int) -> Any:
        return self._links.setdefault(row, Links()).of(content.tokens[:end])

    def _content(self, row: int) -> Content:
        content = self._tables().contents[row]
        if content is None:
            raise InternalError(f"row {row} is in a step but holds no sequence")
        return content

    def _tables(self) -> BlockTables:
        return tables_of(self.manager)
