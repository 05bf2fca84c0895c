"""The books must add up: recounted from scratch, O(pool), called after every step in tests.

Each check raises `InternalError` naming the block or row where the running figures and the recount part.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvbench.cache.pool import CACHED, FREE, IN_TRANSFER, USED
from kvbench.cache.swap import check_swap
from kvbench.cache.types import NULL_BLOCK
from kvbench.errors import InternalError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvbench.cache.books import Books


def check_books(books: Books) -> None:
    """All of the below."""
    check_states(books)
    check_owners(books)
    check_rows(books)
    check_windows(books)
    check_writers(books)
    check_promises(books)
    check_index(books)
    check_parents(books)
    check_transfers(books)
    check_tiers(books)
    check_arrivals(books)
    check_swap(books)


def _require(good: NDArray[np.bool_], text: str) -> None:
    if not good.all():
        raise InternalError(text.format(int(np.argmin(good))))


def check_states(books: Books) -> None:
    """Exactly one state per block, and the running counts are those of the states."""
    pool = books.pool
    counts = np.bincount(pool.state[1:], minlength=5)
    kept = (pool.free, pool.cached, pool.used, pool.in_transfer)
    if tuple(counts[:4]) != kept or sum(kept) != pool.num_blocks or min(kept) < 0:
        raise InternalError(f"blocks (free, cached, used, in transfer) are {tuple(counts[:4])}, counted as {kept}")
    stacked = np.sort(pool.free_stack[: pool.free])
    if not np.array_equal(stacked, np.flatnonzero(pool.state == FREE)):
        raise InternalError("the free stack and the free blocks are not the same set")
    owned, pinned, known = pool.refs > 0, pool.pins > 0, pool.content_ids != 0
    state = pool.state
    _require((owned & ~pinned) == (state == USED), "block {}: owners and state disagree")
    _require(pinned == (state == IN_TRANSFER), "block {}: pins and state disagree")
    _require((state != CACHED) | (~owned & known), "block {} is cached but owned or unpublished")
    _require((state != FREE) | (~owned & ~known), "block {} is free but owned or published")
    _require((pool.refs >= 0) & (pool.pins >= 0), "block {} has a negative count")
    if pool.state[NULL_BLOCK] != 4 or pool.refs[NULL_BLOCK] or known[NULL_BLOCK]:
        raise InternalError(f"block {NULL_BLOCK} is no longer the null block")
    cached = np.flatnonzero(state == CACHED).tolist()
    order = books.policy.order()
    if len(set(order)) != len(order) or not set(order) <= set(cached) or (cached and not order):
        raise InternalError(f"the eviction policy offers {len(order)} blocks, {len(cached)} are cached")


def check_owners(books: Books) -> None:
    """Ref count = number of table entries, parked rows included; no row names a block twice."""
    held = books.tables.blocks[:, books.tables.live]
    owners = np.bincount(held.ravel(), minlength=books.pool.num_blocks + 1)
    for blocks in books.parked:
        owners[blocks] += 1
    owners[NULL_BLOCK] = 0
    wrong = owners != books.pool.refs
    if wrong.any():
        block = int(np.argmax(wrong))
        raise InternalError(f"block {block} has {owners[block]} owners and ref count {int(books.pool.refs[block])}")


def check_rows(books: Books) -> None:
    """Lengths, blocks held and table entries agree; dead rows are empty."""
    tables = books.tables
    filled = tables.blocks[:, : tables.rows_touched] != NULL_BLOCK
    logical = np.arange(tables.width)
    expected = logical < tables.held[None, : tables.rows_touched, None]
    expected = expected & (logical >= tables.freed[:, : tables.rows_touched, None])
    _require((filled == expected).all(axis=(0, 2)), "row {}: its entries are not exactly the blocks it holds")
    _require(tables.held == -(-tables.lengths // books.block_size), "row {} holds too many or too few blocks")
    _require(tables.live | (tables.lengths == 0), "row {} is dead but has slots")
    _require((tables.computed >= 0) & (tables.computed <= tables.lengths), "row {} computed more than it has slots")
    _require(tables.published * books.block_size <= tables.computed, "row {} published what is not computed")
    for row in np.flatnonzero(tables.live).tolist():
        content = tables.contents[row]
        if content is None or content.length < tables.computed[row]:
            raise InternalError(f"row {row} has computed more tokens than its content has")
        own = tables.blocks[:, row, : int(tables.held[row])].ravel()
        own = own[own != NULL_BLOCK]
        if len(np.unique(own)) != len(own):
            raise InternalError(f"row {row} names a block twice")
    if tables.forks != int(tables.forked.sum()):
        raise InternalError(f"{int(tables.forked.sum())} rows are forked, {tables.forks} counted")


def check_windows(books: Books) -> None:
    """Every position that a row's next query may read lies in a real block, and no block is kept longer: the first
    ⌊max(0, c − W + 1) / B⌋ entries of a window group are null, none of a full group."""
    tables = books.tables
    for group, freed in enumerate(tables.freed):
        kind = books.windows.kind_of_group.get(group) if books.windows is not None else None
        past = np.zeros_like(freed) if kind is None else np.maximum(tables.computed - kind.window + 1, 0)
        _require(freed == past // books.block_size, "row {} has let go too many or too few blocks of a window")
    if books.windows is None:
        return
    total = int(books.claims.sum())
    _require(
        (books.claims >= 0) & (books.claims < np.maximum(books.pool.refs, 1)), "block {} has more claims than owners"
    )
    if total != books.claimed:
        raise InternalError(f"claims sum to {total}, counted as {books.claimed}")


def check_writers(books: Books) -> None:
    """A slot that is assigned and not computed lies in a block that only its row owns and nobody can look up."""
    tables, pool = books.tables, books.pool
    for row in np.flatnonzero(tables.live & (tables.computed < tables.lengths)).tolist():
        written = tables.blocks[:, row, int(tables.computed[row]) // books.block_size : int(tables.held[row])].ravel()
        bad = (pool.refs[written] != 1) | (pool.content_ids[written] != 0)
        if bad.any():
            raise InternalError(f"row {row} writes into block {int(written[bad][0])}, which is shared or published")


def check_promises(books: Books) -> None:
    """Promises sum to the running total and are covered by the supply."""
    tables = books.tables
    total = int(tables.promised.sum())
    _require((tables.promised >= 0) & (tables.live | (tables.promised == 0)), "row {} has a promise it cannot have")
    if total != tables.promised_total or books.supply() < 0:
        raise InternalError(f"promises sum to {total}, counted as {tables.promised_total}, supply {books.supply()}")


def check_index(books: Books) -> None:
    """Index and blocks agree in both directions, copies included, and full blocks hold what their key names."""
    pool = books.pool
    seen: list[int] = []
    for group, index in enumerate(books.indexes):
        own = index.check()
        seen += own
        foreign = [block for block in own if pool.groups[block] != group] if books.num_groups > 1 else []
        if foreign:
            raise InternalError(f"block {foreign[0]} is indexed for group {group} but belongs to another")
    published = np.flatnonzero(pool.content_ids).tolist()
    if sorted(seen) != published:
        wrong = set(seen) ^ set(published) or {block for block in seen if seen.count(block) > 1}
        raise InternalError(f"block {min(wrong)} is indexed {seen.count(min(wrong))} times, published or not")


def check_parents(books: Books) -> None:
    """Children of cached parents: a published block's parent content is published too."""
    if not books.caching:
        return
    known = np.flatnonzero(books.pool.content_ids)
    parents = books.labels.parent_ids[known]
    orphan = (parents > 0) & ~np.isin(parents, books.pool.content_ids[known])
    if orphan.any():
        raise InternalError(f"block {int(known[orphan][0])} is published but the block before it is gone")


def check_transfers(books: Books) -> None:
    """Every pending copy holds its pins."""
    pending = books.pending
    _require_pins(
        books.pool.pins,
        [
            *pending.promote_device,
            *pending.load_device,
            *pending.swap_in_device,
            *pending.store_device,
            *pending.copy_source,
            *pending.copy_destination,
        ],
        "block",
    )
    if books.below is not None:
        host, disk = books.below.host, books.below.disk
        down = [*pending.offload_host, *pending.store_host]
        _require_pins(np.array(host.pins), [*down, *pending.promote_host], "host block")
        if disk is not None:
            _require_pins(np.array(disk.pins), [*pending.demote_disk, *pending.load_disk], "disk block")
    for destinations in (
        pending.offload_host + pending.store_host,
        pending.demote_disk,
        pending.swap_out_swap,
        pending.promote_device + pending.load_device + pending.swap_in_device,
        pending.copy_destination,
    ):
        if len(set(destinations)) != len(destinations):
            raise InternalError("two pending copies of one kind have the same destination")
    if set(pending.copy_destination) & set(pending.copy_source):
        raise InternalError("a pending copy reads what another of the same list writes")


def _require_pins(pins: NDArray[np.integer], blocks: list[int], what: str) -> None:
    for block in set(blocks):
        if pins[block] < blocks.count(block):
            raise InternalError(f"{what} {block} has {blocks.count(block)} pending copies and {pins[block]} pins")


def check_tiers(books: Books) -> None:
    """Of every lower tier: the ledger's two directions agree, and free + used = the tier."""
    for tier in books.below.tiers.values() if books.below is not None else ():
        named = {block: stored.name for block, stored in enumerate(tier.stored) if stored is not None}
        if named != {block: name for name, block in tier.blocks.items()}:
            raise InternalError(f"the {tier.what} index and the {tier.what} blocks do not name each other")
        if sorted(tier.order.order()) != sorted(named):
            raise InternalError(f"the {tier.what} tier's order of eviction does not name exactly its contents")
        if sorted([*named, *tier.free]) != list(range(tier.num_blocks)):
            raise InternalError(f"free and used {tier.what} blocks do not make up the {tier.what} tier")
        if any(tier.pins[block] for block in tier.free):
            raise InternalError(f"a free {tier.what} block is pinned")


def check_arrivals(books: Books) -> None:
    """Who waits is live and waits for pinned blocks of its own row, none of which anybody can look up yet."""
    pool, tables, arrivals = books.pool, books.tables, books.arrivals
    for row, wait in arrivals.rows.items():
        if not tables.live[row]:
            raise InternalError(f"row {row} waits for blocks but holds no sequence")
        for block in wait.blocks:
            if not pool.pins[block] or pool.content_ids[block] or block not in tables.blocks[:, row]:
                raise InternalError(f"row {row} waits for block {block}, which is not on its way to it")
    for block, stored in arrivals.contents.items():
        if arrivals.names.get(stored.name) != block or not pool.pins[block]:
            raise InternalError(f"block {block} is offered as on its way but is not")
