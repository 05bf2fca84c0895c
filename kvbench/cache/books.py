"""The state behind the paged manager's door, and the few moves that all of its operations share.

Who may do what with a physical block, from the admission that takes it to the transfer that lets it go:

    supply            free and cached blocks, minus those promised to live rows and those claimed (below); `take`
                      hands them out
    table entries     one reference each; `drop` gives them back
    pending copies    a pin each, from the decision until `complete`; a pinned block is neither freed nor evicted
    parked rows       rows released while one of their blocks was pinned: their references outlive the row until
                      `complete`, so that a pinned child never stays behind without its parents
    claims            a block of a window group that a second row hits: both will let go of it and need another, but
                      only one of them gives it back. So each hit beyond the first owner sets a block of the supply
                      aside, until one of the owners lets go
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvbench.cache.arrivals import Arrivals, publish_arrived
from kvbench.cache.below import UP, Below
from kvbench.cache.content import KeyChain
from kvbench.cache.eviction.outside import LruWithOutside
from kvbench.cache.eviction.policy import make_policy
from kvbench.cache.pool import BlockPool
from kvbench.cache.prefix import Labels, make_index
from kvbench.cache.siblings import Siblings
from kvbench.cache.swap import SwapArea
from kvbench.cache.symbolic import NAME_WORDS
from kvbench.cache.tables import BlockTables
from kvbench.cache.tail_index import TailIndex
from kvbench.cache.transfers import Transfers
from kvbench.cache.types import CacheStats, Int64s
from kvbench.cache.windows import Windows
from kvbench.cache.write_through import Seen
from kvbench.errors import InternalError

if TYPE_CHECKING:
    from kvbench.cache.below import Found
    from kvbench.cache.prefix import PrefixIndex
    from kvbench.cache.types import CacheSettings

SEEN_PER_BLOCK = 4
"""Names that write-through remembers a count of, per block of device and host"""


class Books:
    """Pool, tables, indexes, tiers and pending copies of one manager."""

    def __init__(self, settings: CacheSettings) -> None:
        self.block_size = settings.block_size
        self.num_groups = len(settings.groups)
        self.caching = settings.prefix_cache != "none"
        self.chain = KeyChain(settings.block_size, settings.namespace, settings.hash_function)
        self.tail_chain = KeyChain(settings.block_size, settings.namespace, "sha256")
        """Names the blocks of window groups"""
        self.windows = Windows(settings) if any(group.window is not None for group in settings.groups) else None
        self.pool = BlockPool(settings.num_blocks)
        self.tables = BlockTables(self.num_groups, settings.max_sequences, settings.max_context, settings.block_size)
        self.tables.has_windows = self.windows is not None
        self.policy = make_policy(settings, self.pool)
        words = NAME_WORDS if settings.symbolic else settings.block_size
        self.labels = Labels(settings.num_blocks if self.caching else 0, words)
        self.indexes = [self._make_index(settings.prefix_cache, group) for group in range(self.num_groups)]
        self.reuses_fronts = settings.partial_block_reuse and self.caching
        self.pending = Transfers()
        self.parked: list[Int64s] = []
        self.claims = np.zeros(settings.num_blocks + 1 if self.windows is not None else 0, dtype=np.int32)
        self.claimed = 0
        self.totals = CacheStats(
            blocks_total=settings.num_blocks,
            host_blocks_total=settings.host_blocks,
            disk_blocks_total=settings.disk_blocks,
            swap_blocks_total=settings.swap_blocks,
        )
        self.arrivals = Arrivals()
        self.below = Below(settings, self.labels, self.pool, self.totals) if settings.host_blocks else None
        self.writes_through = self.below is not None and settings.offload_when == "completed"
        self.seen = Seen(settings.store_threshold, SEEN_PER_BLOCK * (settings.num_blocks + settings.host_blocks))
        self.swap = SwapArea(settings.swap_blocks) if settings.swap_blocks else None
        for index in self.indexes:
            index.lower_tier = self.below
            index.siblings = Siblings() if self.reuses_fronts else None

    def supply(self) -> int:
        """Blocks that a newcomer may take."""
        return self.pool.free + self.pool.cached - self.tables.promised_total - self.claimed

    def cached_contents(self) -> int:
        """Distinct published contents of the group that has fewest; window groups, which keep but tails, count only
        where there are no others."""
        whole = [index for index in self.indexes if not isinstance(index, TailIndex)]
        return min(len(index) for index in whole or self.indexes)

    def take(self, count: int) -> Int64s:
        """`count` blocks with one owner each; cached blocks lose their contents when the free ones do not suffice."""
        missing = count - self.pool.free
        if missing > 0 and self.forget(missing) < missing:
            raise InternalError(f"{missing} evictions wanted, but the eviction policy knows too few cached blocks")
        return self.pool.allocate(count)

    def forget(self, count: int) -> int:
        """Evict `count` cached blocks, fewer when the policy knows no more; how many went."""
        gone = 0
        while gone < count and len(victims := self.policy.take(count - gone)):
            self._evict(victims)
            gone += len(victims)
        return gone

    def drop(self, blocks: Int64s) -> None:
        """Give back one reference of each block, in this order (tail first)."""
        if self.claimed:
            self._settle_claims(blocks, 1)
        cached = self.pool.release(blocks)
        if len(cached):
            self.policy.add(cached)

    def drop_outside(self, blocks: Int64s) -> None:
        """`drop` of blocks that fell out of their window. Several rows may let go of one block at once."""
        owners: Int64s | int = 1
        if np.count_nonzero(self.pool.refs.take(blocks) > 1):
            _, first, counts = np.unique(blocks, return_index=True, return_counts=True)
            order = np.argsort(first)
            blocks, owners = blocks[first[order]], counts[order]
        if self.claimed:
            self._settle_claims(blocks, owners)
        cached = self.pool.release(blocks, owners)
        if len(cached) and isinstance(self.policy, LruWithOutside):
            is_shared = self.pool.hits.take(cached) > 1
            if np.count_nonzero(is_shared):
                self.policy.add(cached[is_shared])
                cached = cached[~is_shared]
            self.policy.add_outside(cached)
        elif len(cached):
            self.policy.add(cached)

    def claim(self, blocks: Int64s) -> None:
        """A row hits blocks of a window group that others own."""
        self.claims[blocks] += 1
        self.claimed += len(blocks)

    def _settle_claims(self, blocks: Int64s, owners: Int64s | int) -> None:
        claims = self.claims.take(blocks)
        settled = np.minimum(claims, owners)
        self.claims[blocks] = claims - settled
        self.claimed -= int(settled.sum())

    def copy_on_write(self, source: int, destination: int) -> None:
        """Decide a copy; the caller still holds both references."""
        self.pending.copy_source.append(source)
        self.pending.copy_destination.append(destination)
        self.pool.pin(source)
        self.pool.pin(destination)
        self.totals.copy_on_write_copies += 1

    def bring_up(self, found: Found, block: int) -> None:
        """Decide to copy a hit below, which is pinned already, into a device block."""
        below = self._below()
        sources, destinations = self.pending.pairs(UP[found.tier])
        sources.append(found.block)
        destinations.append(block)
        stored = below.at(found)
        if found.tier == "disk":
            self.pending.load_keys.append(stored.digest())
        self.pool.pin(block)
        self.arrivals.expect(block, stored)
        self.totals.promoted_blocks += 1

    def complete(self, transfers: Transfers) -> list[int]:
        """Returns rows that turned out to be spoiled, because what they were to read was spoiled on its way down."""
        self._end(transfers, ok=True)
        return self._settle()

    def fail(self, transfers: Transfers) -> list[int]:
        """Returns the rows that are spoiled."""
        copied = set(transfers.copy_destination)
        tables = self.tables
        spoiled = [
            row
            for row in tables.live.nonzero()[0].tolist()
            if copied and copied & set(tables.blocks[:, row].ravel().tolist())
        ]
        self._end(transfers, ok=False)
        return sorted({*spoiled, *self._settle()})

    def close(self, row: int) -> None:
        """A row ends: whatever it waited for, its blocks go back."""
        if self.arrivals:
            self.arrivals.leave(row)
        self.drop_or_park(self.tables.close(row))

    def _end(self, transfers: Transfers, *, ok: bool) -> None:
        """Copies are over: pins are let go, and blocks have arrived, or never will."""
        self._end_below(transfers, ok)
        for block in transfers.store_device:
            self._unpin(block)
        for block in (*transfers.copy_source, *transfers.copy_destination):
            self._unpin(block)

    def _end_below(self, transfers: Transfers, ok: bool) -> None:
        to_host = transfers.offload_host + transfers.store_host
        for tier, blocks in (("host", to_host), ("disk", transfers.demote_disk)):
            for block in blocks:
                self._below().copied_down(tier, block, ok)
        for tier, kind in UP.items():
            for source, block in zip(*transfers.pairs(kind), strict=True):
                self._arrive(block, self._below().copied_up(tier, source, ok))
        for swap_block in transfers.swap_out_swap:
            self._swap().finish(swap_block, ok=ok)
        for swap_block, block in zip(transfers.swap_in_swap, transfers.swap_in_device, strict=True):
            self._swap().finish(swap_block, ok=ok)
            self._arrive(block, ok)

    def _arrive(self, block: int, ok: bool) -> None:
        (self.arrivals.arrived if ok else self.arrivals.failed)(block)
        self._unpin(block)

    def _unpin(self, block: int) -> None:
        if self.pool.unpin(block):
            self.policy.add(np.array([block]))

    def _settle(self) -> list[int]:
        """Publish what rows have been waiting for; let parked rows go. Returns spoiled rows."""
        if self.arrivals:
            for row, wait in self.arrivals.take_ready():
                publish_arrived(self, wait)
                if row is not None:
                    self.tables.published[row] = wait.entries.shape[1]
        if self.parked:
            waiting, self.parked = self.parked, []
            for blocks in waiting:
                self.drop_or_park(blocks)
        return self.arrivals.spoiled_rows()

    def drop_or_park(self, blocks: Int64s) -> None:
        """`drop`, unless a copy is under way in one of the blocks: then all of them wait for it."""
        if self.pool.in_transfer and np.count_nonzero(self.pool.pins.take(blocks)):
            self.parked.append(blocks)
        else:
            self.drop(blocks)

    def _make_index(self, name: str, group: int) -> PrefixIndex:
        kind = self.windows.kind_of_group.get(group) if self.windows is not None else None
        if kind is None:
            return make_index(name, self.pool, self.labels, self.policy, group, self.chain)
        return TailIndex(self.pool, self.labels, self.policy, group, self.tail_chain, kind.tail)

    def _evict(self, victims: Int64s) -> None:
        if self.num_groups == 1:
            self._forget(0, victims)
        else:
            owners = self.pool.groups[victims]
            for group in range(self.num_groups):
                self._forget(group, victims[owners == group])
        self.pool.evict(victims)
        self.totals.evictions += len(victims)

    def _forget(self, group: int, victims: Int64s) -> None:
        below = None if self.writes_through else self.below
        content_ids = self.pool.content_ids.take(victims) if below is not None else None
        gone = self.indexes[group].remove(victims)
        if below is None or content_ids is None:
            return
        last = set(gone)
        for block, content in zip(victims.tolist(), content_ids.tolist(), strict=True):
            if block in last:
                below.offload(group, block, content, self.pending)

    def _below(self) -> Below:
        if self.below is None:
            raise InternalError("copies to or from a lower tier have ended, but there is none")
        return self.below

    def _swap(self) -> SwapArea:
        if self.swap is None:
            raise InternalError("copies to or from the swap area have ended, but there is none")
        return self.swap
