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

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from kvbench.cache.arrivals import Wait
from kvbench.cache.partial import NO_PARTIAL, PartialHit, copy_fronts, find_partial, hold_sources
from kvbench.cache.prefix import NO_BLOCKS
from kvbench.cache.swap import swap_in
from kvbench.cache.tail_hits import find_with_tails
from kvbench.cache.types import Admission, Int32s, Int64s, Plan
from kvbench.cache.write_through import write_hits_through
from kvbench.errors import InternalError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvbench.cache.below import Below, Found
    from kvbench.cache.books import Books
    from kvbench.cache.content import Content
    from kvbench.cache.swap import Swapped
    from kvbench.cache.windows import Windows


@dataclass(slots=True)
class GroupHits:
    """What one layer group found for one prompt."""

    device: Int64s
    below: list[Found]
    was_cached: NDArray[np.bool_]
    """Which device hits nobody owned: they leave the supply without leaving the cache"""
    first: int = 0
    """Logical block of the first of them"""
    claimed: Int64s = field(default_factory=lambda: NO_BLOCKS)
    """Hits in a window group that other rows own"""
    pending: int = 0
    """How many device hits, the last ones, are still on their way"""

    @property
    def published(self) -> int:
        return len(self.device) - self.pending

    def cut(self, blocks: int) -> None:
        """Keep the first `blocks` logical blocks."""
        del self.below[max(0, blocks - len(self.device)) :]
        self.pending = max(0, min(self.pending, blocks - self.published))
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
    swapped: Swapped | None = None
    promised: int = 0
    target: int = 0
    for_forks: int = 0
    """Of the promised blocks, those for rows that will be forked"""


_MISS = GroupHits(NO_BLOCKS, [], np.zeros(0, dtype=bool))


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
    groups, hit_blocks = _look_up(books, content) if books.caching else ([_MISS] * books.num_groups, 0)
    if swapped is not None and not swapped.is_lost and swapped.tokens > hit_blocks * books.block_size:
        groups, hit_blocks = _device_hits_only(groups)
        back = AdmissionDetail(groups, hit_blocks, NO_PARTIAL, readmission, swapped)
        return _counted(books, content, wanted, epoch, back)
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
        hits = GroupHits(device, [], _MISS.was_cached)
        if books.below is not None:
            _find_below(books, books.below, group, keys, tokens, hits, root)
        if not len(hits.device) and not hits.below:
            return [_MISS] * books.num_groups, 0
        groups.append(hits)
    common = min(len(hits.device) + len(hits.below) for hits in groups)
    for hits in groups:
        hits.cut(common)
        hits.was_cached = books.pool.refs.take(hits.device) == 0
        if books.pool.in_transfer:
            hits.was_cached &= books.pool.pins.take(hits.device) == 0
    return groups, common


def _content_before(books: Books, content: Content, hits: GroupHits) -> int:
    """The content id behind which the first block without a hit comes."""
    if books.below is not None and hits.below:
        return books.below.at(hits.below[-1]).content
    if hits.pending:
        return books.arrivals.contents[int(hits.device[-1])].content
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


def _device_hits_only(groups: list[GroupHits]) -> tuple[list[GroupHits], int]:
    """Of a sequence on the swap area: what the device still has in every group; the rest comes from the area."""
    common = min(len(hits.device) for hits in groups)
    for hits in groups:
        if hits is not _MISS:
            hits.cut(common)
            hits.was_cached = hits.was_cached[:common]
    return groups, common


def _find_below(
    books: Books, below: Below, group: int, keys: list[bytes], tokens: Int32s, hits: GroupHits, root: int
) -> None:
    """What continues the device hits: blocks on their way, then contents on lower tiers. A key that the device holds
    for another content ends the search: the block could not be published under it."""
    index, arrivals, pending = books.indexes[group], books.arrivals, []
    parent = int(books.pool.content_ids[hits.device[-1]]) if len(hits.device) else root
    for at in range(len(hits.device), len(keys)):
        name, own = (group, keys[at]), tokens[at].tobytes()
        block = arrivals.find(name, own, parent) if not hits.below else None
        found = below.find(name, own, parent) if block is None and not index.holds(keys[at]) else None
        if block is not None:
            pending.append(block)
            parent = arrivals.contents[block].content
        elif found is not None:
            hits.below.append(found)
            parent = below.at(found).content
        else:
            break
    if pending:
        hits.pending = len(pending)
        hits.device = np.concatenate([hits.device, np.array(pending, dtype=np.int64)])


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
        totals.preempted_queries += plan.content.length
        totals.preempted_hits += plan.cached_tokens
    else:
        totals.prefix_cache_queries += plan.content.length
        totals.prefix_cache_hits += plan.cached_tokens
