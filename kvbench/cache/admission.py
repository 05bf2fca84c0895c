"""Admission: what a sequence takes, and taking it. `plan_admission` is also the estimator; there is no second count.

Blocks of an admitted row, per layer group, as half-open ranges of logical blocks:

    [0, d)        device hits: one reference more on a block that is published, or is on its way (pending hits, last)
    [d, h)        hits below: a new block each, published when everything up to it has arrived
    [d, s)        of a sequence that comes back from the swap area instead: a new block each, private
    [h, held)     new blocks, private until they are full and computed; the first may begin as a copy (partial.py)
    [held, t)     promised: no block yet, but counted out of the supply

h is the same in all groups, the least of what each of them found (E51). Of a window group only the hits from `first`
on are taken, what the next query reads; the entries before are null.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from kvbench.cache.arrivals import Wait
from kvbench.cache.look_up import MISS, GroupHits, content_before, device_hits_only, look_up
from kvbench.cache.partial import NO_PARTIAL, PartialHit, copy_fronts, find_partial, hold_sources
from kvbench.cache.swap import swap_in
from kvbench.cache.types import Admission, Int64s, Plan
from kvbench.cache.write_through import write_hits_through
from kvbench.errors import InternalError

if TYPE_CHECKING:
    from kvbench.cache.books import Books
    from kvbench.cache.content import Content
    from kvbench.cache.swap import Swapped


class _Wanted(NamedTuple):
    """What the caller asks for: tokens with slots, tokens promised, blocks for forks."""

    hold: int
    promise: int
    fork_blocks: int


@dataclass(slots=True)
class AdmissionDetail:
    """What `commit` needs of an admission plan beside its figures: the hits by group, and the blocks promised beyond
    what is held."""

    groups: list[GroupHits]
    hit_blocks: int
    partial: PartialHit
    readmission: bool
    swapped: Swapped | None = None
    promised: int = 0
    target: int = 0
    for_forks: int = 0
    """Of the promised blocks, those for rows that will be forked"""


def plan_admission(
    books: Books,
    content: Content,
    hold: int,
    promise: int,
    readmission: bool,
    epoch: int,
    fork_blocks: int = 0,
    swapped: Swapped | None = None,
) -> Plan:
    """See `CacheManager.plan`. Reads only."""
    _check_lengths(books, content, hold, promise)
    wanted = _Wanted(hold, promise, fork_blocks)
    groups, hit_blocks = look_up(books, content) if books.caching else ([MISS] * books.num_groups, 0)
    if swapped is not None and not swapped.is_lost and swapped.tokens > hit_blocks * books.block_size:
        groups, hit_blocks = device_hits_only(groups)
        back = AdmissionDetail(groups, hit_blocks, NO_PARTIAL, readmission, swapped)
        return _counted(books, content, wanted, epoch, back)
    if books.reuses_fronts:
        parents = [content_before(books, content, hits) for hits in groups]
        partial = find_partial(books, content, hit_blocks, parents)
        plan = _counted(books, content, wanted, epoch, AdmissionDetail(groups, hit_blocks, partial, readmission))
        if plan.fits or not partial.tokens:
            return plan
    return _counted(books, content, wanted, epoch, AdmissionDetail(groups, hit_blocks, NO_PARTIAL, readmission))


def _counted(books: Books, content: Content, wanted: _Wanted, epoch: int, detail: AdmissionDetail) -> Plan:
    """What the hits leave to be taken, and whether it is there."""
    cached_tokens = detail.hit_blocks * books.block_size + detail.partial.tokens
    if detail.swapped is not None:
        cached_tokens = detail.swapped.tokens
    hold = max(wanted.hold, cached_tokens)
    held = books.tables.blocks_for(hold)
    present, revived = 0, detail.partial.revived
    for group in detail.groups:
        present += len(group.device) + group.first
        revived += int(np.count_nonzero(group.was_cached)) + len(group.claimed)
    new = books.num_groups * held - present
    detail.target = books.num_groups * books.tables.blocks_for(wanted.promise)
    detail.promised = max(0, detail.target - books.num_groups * held)
    if detail.promised and books.windows is not None:
        blocks = books.tables.blocks_for(wanted.promise)
        detail.promised = int(books.windows.to_promise(blocks, held, content.length, cached_tokens))
    detail.promised += wanted.fork_blocks
    detail.for_forks = wanted.fork_blocks
    shortfall = new + detail.promised + revived - books.supply()
    return Plan(
        content=content,
        fits=shortfall <= 0,
        cached_tokens=cached_tokens,
        hold_tokens=hold,
        promise_tokens=wanted.promise,
        new_blocks=new,
        promote_blocks=books.num_groups * detail.hit_blocks - present,
        evict_blocks=max(0, new - books.pool.free),
        shortfall_blocks=max(0, shortfall),
        epoch=epoch,
        spare_blocks=max(0, -shortfall),
        detail=detail,
    )


def commit_admission(books: Books, plan: Plan) -> Admission:
    """Carry out a fresh plan that fits."""
    detail = plan.detail
    if not isinstance(detail, AdmissionDetail):
        raise InternalError("this plan was not made by the paged manager")
    row = books.tables.open(plan.content, plan.hold_tokens)
    _pin_hits(books, detail, plan.content.priority)
    if detail.partial.tokens:
        hold_sources(books, detail.partial)
    blocks = books.take(plan.new_blocks)
    used = 0
    for group, hits in enumerate(detail.groups):
        need = int(books.tables.held[row]) - hits.first - len(hits.device)
        _fill_row(books, row, group, hits, blocks[used : used + need])
        used += need
    books.tables.computed[row] = plan.cached_tokens
    books.tables.published[row] = detail.hit_blocks
    books.tables.promise(row, detail.target, detail.promised)
    if books.windows is not None:
        books.windows.open(row, plan.content.length, detail.for_forks)
    if books.below is not None or detail.swapped is not None:
        _load(books, row, plan, detail)
    if detail.partial.tokens:
        copy_fronts(books, row, detail.hit_blocks, detail.partial)
    if books.writes_through:
        write_hits_through(books, plan.content, detail.groups)
    if books.caching and detail.swapped is None:
        _count(books, plan, detail.readmission)
    return Admission(row, plan.cached_tokens, plan.promote_blocks // books.num_groups * books.block_size)


def _check_lengths(books: Books, content: Content, hold: int, promise: int) -> None:
    limit = books.tables.width * books.block_size
    if content.length < 1 or hold < 0 or max(hold, promise, content.length) > limit:
        raise InternalError(
            f"a sequence of {content.length} tokens ({hold} held, {promise} promised) does not fit a table row "
            f"of {limit} slots"
        )


def _pin_hits(books: Books, detail: AdmissionDetail, priority: int) -> None:
    """Hits of all groups, on all tiers, are ours before anything is evicted or allocated (E06, E07)."""
    for hits in detail.groups:
        if len(hits.claimed):
            books.claim(hits.claimed)
        if len(hits.device):
            books.pool.retain(hits.device, hits.was_cached)
            published = hits.device[: hits.published]
            books.policy.forget(published)
            if books.policy.watches_priority:
                books.policy.used_by(priority, published)
        if books.below is not None:
            for found in reversed(hits.below):
                books.below.claim(found)


def _fill_row(books: Books, row: int, group: int, hits: GroupHits, new: Int64s) -> None:
    entries = books.tables.blocks[group, row]
    shared = hits.first + len(hits.device)
    if len(hits.device):
        entries[hits.first : shared] = hits.device
    if hits.first:
        books.tables.freed[group, row] = hits.first
    entries[shared : shared + len(new)] = new
    if books.num_groups > 1:
        books.pool.groups[new] = group


def _load(books: Books, row: int, plan: Plan, detail: AdmissionDetail) -> None:
    """Ask for what is not on the device yet; until it is there, the row waits."""
    waits: list[int] = []
    for group, hits in enumerate(detail.groups):
        first = len(hits.device)
        waits += hits.device[hits.published :].tolist()
        blocks = books.tables.blocks[group, row, first : first + len(hits.below)].tolist()
        for block, found in zip(blocks, hits.below, strict=True):
            books.bring_up(found, block)
        waits += blocks
    if detail.swapped is not None:
        waits += swap_in(books, row, detail.swapped, [len(hits.device) for hits in detail.groups])
    if waits:
        books.tables.published[row] = min(hits.published for hits in detail.groups)
        entries = books.tables.blocks[:, row, : detail.hit_blocks].astype(np.int64)
        books.arrivals.wait(row, Wait(set(waits), plan.content, entries))


def _count(books: Books, plan: Plan, readmission: bool) -> None:
    """Look-ups count when they lead to an admission; re-hits after a preemption are no achievement (E19)."""
    totals = books.totals
    if readmission:
        totals.readmission_queries += plan.content.length
        totals.readmission_hits += plan.cached_tokens
    else:
        totals.prefix_cache_queries += plan.content.length
        totals.prefix_cache_hits += plan.cached_tokens
