"""Admission: what a sequence takes, and taking it. `plan_admission` is also the estimator; there is no second count.

Blocks of an admitted row, per layer group, as half-open ranges of logical blocks:

    [0, d)        device hits: one reference more on a published block
    [d, h)        host hits: a new block each, published at once, in transfer until the promotion is complete
    [h, held)     new blocks, private until they are full and computed; the first may begin as a copy (partial.py)
    [held, t)     promised: no block yet, but counted out of the supply

h is the same in all groups, the least of what each of them found (E51). Of a window group only the hits from `first`
on are taken, what the next query reads; the entries before are null.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from kvbench.cache.partial import NO_PARTIAL, PartialHit, copy_fronts, find_partial, hold_sources
from kvbench.cache.prefix import NO_BLOCKS
from kvbench.cache.tail_hits import find_with_tails
from kvbench.cache.types import Admission, Int32s, Int64s, Plan
from kvbench.errors import InternalError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvbench.cache.books import Books
    from kvbench.cache.content import Content
    from kvbench.cache.windows import Windows


@dataclass(slots=True)
class GroupHits:
    """What one layer group found for one prompt."""

    device: Int64s
    host: list[int]
    was_cached: NDArray[np.bool_]
    """Which device hits nobody owned: they leave the supply without leaving the cache"""
    first: int = 0
    """Logical block of the first of them"""
    claimed: Int64s = field(default_factory=lambda: NO_BLOCKS)
    """Hits in a window group that other rows own"""

    def cut(self, blocks: int) -> None:
        """Keep the first `blocks` logical blocks."""
        del self.host[max(0, blocks - len(self.device)) :]
        self.device = self.device[:blocks]


class _Wanted(NamedTuple):
    """What the caller asks for: tokens with slots, tokens promised, blocks for forks."""

    hold: int
    promise: int
    fork_blocks: int


@dataclass(slots=True)
class AdmissionDetail:
    groups: list[GroupHits]
    hit_blocks: int
    partial: PartialHit
    readmission: bool
    promised: int = 0
    target: int = 0
    for_forks: int = 0
    """Of the promised blocks, those for rows that will be forked"""


_MISS = GroupHits(NO_BLOCKS, [], np.zeros(0, dtype=bool))


def plan_admission(
    books: Books, content: Content, hold: int, promise: int, readmission: bool, epoch: int, fork_blocks: int = 0
) -> Plan:
    """See `CacheManager.plan`. Reads only."""
    _check_lengths(books, content, hold, promise)
    wanted = _Wanted(hold, promise, fork_blocks)
    groups, hit_blocks = _look_up(books, content) if books.caching else ([_MISS] * books.num_groups, 0)
    if books.reuses_fronts:
        parents = [_content_before(books, content, hits) for hits in groups]
        partial = find_partial(books, content, hit_blocks, parents)
        plan = _counted(books, content, wanted, epoch, AdmissionDetail(groups, hit_blocks, partial, readmission))
        if plan.fits or not partial.tokens:
            return plan
    return _counted(books, content, wanted, epoch, AdmissionDetail(groups, hit_blocks, NO_PARTIAL, readmission))


def _counted(books: Books, content: Content, wanted: _Wanted, epoch: int, detail: AdmissionDetail) -> Plan:
    """What the hits leave to be taken, and whether it is there."""
    cached_tokens = detail.hit_blocks * books.block_size + detail.partial.tokens
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
    if plan.promote_blocks:
        _promote(books, row, detail)
    if detail.partial.tokens:
        copy_fronts(books, row, detail.hit_blocks, detail.partial)
    if books.caching:
        _count(books, plan, detail.readmission)
    return Admission(row, plan.cached_tokens, plan.promote_blocks // books.num_groups * books.block_size)


def _check_lengths(books: Books, content: Content, hold: int, promise: int) -> None:
    limit = books.tables.width * books.block_size
    if content.length < 1 or hold < 0 or max(hold, promise, content.length) > limit:
        raise InternalError(
            f"a sequence of {content.length} tokens ({hold} held, {promise} promised) does not fit a table row "
            f"of {limit} slots"
        )


def _look_up(books: Books, content: Content) -> tuple[list[GroupHits], int]:
    """Hits of every group, cut to the length they have in common. The last token is never covered (E12)."""
    limit = (content.length - 1) // books.block_size
    if books.windows is not None:
        return _look_up_with_tails(books, books.windows, content, limit)
    keys = content.keys(books.chain, limit)[:limit] if books.indexes[0].needs_keys else []
    tokens = content.named(books.chain, 0, limit)
    root = books.labels.root_id(content.salt)
    groups: list[GroupHits] = []
    for group, index in enumerate(books.indexes):
        device = index.find(keys, tokens, root)
        host = _find_on_host(books, group, keys, tokens, device, root) if books.host is not None else []
        if not len(device) and not host:
            return [_MISS] * books.num_groups, 0
        groups.append(GroupHits(device, host, _MISS.was_cached))
    common = min(len(hits.device) + len(hits.host) for hits in groups)
    for hits in groups:
        hits.cut(common)
        hits.was_cached = books.pool.refs.take(hits.device) == 0
        if books.pool.in_transfer:
            hits.was_cached &= books.pool.pins.take(hits.device) == 0
    return groups, common


def _content_before(books: Books, content: Content, hits: GroupHits) -> int:
    """The content id behind which the first block without a hit comes."""
    if books.host is not None and hits.host:
        return int(books.host.content_ids[hits.host[-1]])
    if len(hits.device):
        return int(books.pool.content_ids[hits.device[-1]])
    return books.labels.root_id(content.salt)


def _look_up_with_tails(books: Books, windows: Windows, content: Content, limit: int) -> tuple[list[GroupHits], int]:
    found = find_with_tails(books, windows, content, limit)
    if found is None:
        return [_MISS] * books.num_groups, 0
    groups: list[GroupHits] = []
    for group, (first, device) in enumerate(found):
        unowned = books.pool.refs.take(device) == 0
        claimed = device[~unowned] if group in windows.kind_of_group else NO_BLOCKS
        if books.pool.in_transfer:
            unowned &= books.pool.pins.take(device) == 0
        groups.append(GroupHits(device, [], unowned, first, claimed))
    return groups, found[0][0] + len(found[0][1])


def _find_on_host(books: Books, group: int, keys: list[bytes], tokens: Int32s, device: Int64s, root: int) -> list[int]:
    """Host blocks that continue the device hits. A key that the device holds for another content ends the search:
    the promoted block could not be published under it."""
    host, index = books.host, books.indexes[group]
    found: list[int] = []
    parent = int(books.pool.content_ids[device[-1]]) if len(device) else root
    for at in range(len(device), len(keys)):
        block = None if host is None or index.holds(keys[at]) else host.find(group, keys[at], tokens[at], parent)
        if host is None or block is None:
            break
        found.append(block)
        parent = int(host.content_ids[block])
    return found


def _pin_hits(books: Books, detail: AdmissionDetail, priority: int) -> None:
    """Hits of all groups, on both tiers, are ours before anything is evicted or allocated (E06, E07)."""
    for hits in detail.groups:
        if len(hits.claimed):
            books.claim(hits.claimed)
        if len(hits.device):
            books.pool.retain(hits.device, hits.was_cached)
            books.policy.forget(hits.device)
            if books.policy.watches_priority:
                books.policy.used_by(priority, hits.device)
        if books.host is not None:
            for block in reversed(hits.host):
                books.host.pin(block)
                books.host.touch(block)


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


def _promote(books: Books, row: int, detail: AdmissionDetail) -> None:
    host = books.host
    if host is None:
        raise InternalError("a promotion was planned, but there is no host tier")
    for group, hits in enumerate(detail.groups):
        first = len(hits.device)
        blocks = books.tables.blocks[group, row, first : first + len(hits.host)].tolist()
        for block, host_block in zip(blocks, hits.host, strict=True):
            name = host.names[host_block]
            if name is None:
                raise InternalError(f"host block {host_block} was promised to row {row} but holds nothing")
            books.promote(host_block, block)
            ids = int(host.content_ids[host_block]), int(host.parent_ids[host_block])
            books.indexes[group].adopt(name[1], host.tokens[host_block], block, *ids)


def _count(books: Books, plan: Plan, readmission: bool) -> None:
    """Look-ups count when they lead to an admission; re-hits after a preemption are no achievement (E19)."""
    totals = books.totals
    if readmission:
        totals.preempted_queries += plan.content.length
        totals.preempted_hits += plan.cached_tokens
    else:
        totals.prefix_cache_queries += plan.content.length
        totals.prefix_cache_hits += plan.cached_tokens
