"""What lies below the device: the host tier, the disk tier under it, and the ways down.

device ── offload (evicted) or store (completed) ──► host ── demote (host is full) ──► disk
device ◄──────────────── promote ──────────────────  host
device ◄──────────────────────────── load ────────────────────────────────────────────  disk
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kvbench.cache.tier import Stored, Tier
from kvbench.cache.tier_order import make_tier_order

if TYPE_CHECKING:
    from kvbench.cache.pool import BlockPool
    from kvbench.cache.prefix import Labels
    from kvbench.cache.tier_order import TierKey
    from kvbench.cache.transfers import Transfers
    from kvbench.cache.types import CacheSettings, CacheStats, Int32s

UP = {"host": "promote", "disk": "load"}


class Found(NamedTuple):
    """A hit below the device."""

    tier: str
    block: int


class Below:
    """The lower tiers of one manager; `pending` collects the copies that they decide."""

    def __init__(self, settings: CacheSettings, labels: Labels, pool: BlockPool, totals: CacheStats) -> None:
        self._labels, self._pool, self._totals = labels, pool, totals
        self.pending: Transfers | None = None
        self.host = Tier("host", settings.host_blocks, make_tier_order(settings.host_eviction, settings.host_blocks))
        self.disk: Tier | None = None
        self.tiers = {"host": self.host}
        if settings.disk_blocks:
            self.disk = Tier("disk", settings.disk_blocks, make_tier_order("lru", settings.disk_blocks))
            self.tiers["disk"] = self.disk
            self.host.give_up = self._demote

    def find(self, name: TierKey, tokens: bytes, parent: int) -> Found | None:
        """Where these contents lie, the nearest tier first."""
        for label, tier in self.tiers.items():
            block = tier.find(name, tokens, parent)
            if block is not None:
                return Found(label, block)
        return None

    def at(self, found: Found) -> Stored:
        return self.tiers[found.tier].at(found.block)

    def content_id(self, group: int, key: bytes, tokens: Int32s, parent: int) -> int:
        """The id of a content that lies in some tier, else 0."""
        found = self.find((group, key), tokens.tobytes(), parent)
        return 0 if found is None else self.at(found).content

    def claim(self, found: Found) -> None:
        """A hit is pinned from the look-up to the end of its copy."""
        tier = self.tiers[found.tier]
        tier.pin(found.block)
        tier.touch(found.block)

    def copied_down(self, tier: str, block: int, ok: bool) -> None:
        """A copy into a tier has ended; a bad one is not kept."""
        if not ok:
            self.tiers[tier].spoil(block)
        self.tiers[tier].unpin(block)

    def copied_up(self, tier: str, block: int, ok: bool) -> bool:
        """A copy out of a tier has ended. Returns whether what was copied is good: not when the copy failed, nor when
        the contents were spoiled on their way down, which a copy that was queued behind could not know."""
        good = ok and not self.tiers[tier].is_spoiled(block)
        if not good:
            self.tiers[tier].spoil(block)
        self.tiers[tier].unpin(block)
        return good

    def offload(self, group: int, block: int, content: int, pending: Transfers) -> None:
        """An evicted device block goes down, unless its contents lie in the host tier already."""
        host_block = self._put(group, block, content, pending)
        if host_block is not None:
            pending.offload_device.append(block)
            pending.offload_host.append(host_block)
            self._totals.offloaded_blocks += 1

    def store(self, group: int, block: int, pending: Transfers) -> None:
        """A published device block that stays is copied down; it is pinned until that is done."""
        host_block = self._put(group, block, int(self._pool.content_ids[block]), pending)
        if host_block is not None:
            self._pool.pin(block)
            pending.store_device.append(block)
            pending.store_host.append(host_block)
            self._totals.offloaded_blocks += 1

    def _put(self, group: int, block: int, content: int, pending: Transfers) -> int | None:
        labels = self._labels
        name, parent = (group, labels.keys[block]), int(labels.parent_ids[block])
        self.pending = pending
        return self.host.put(Stored(name, labels.tokens[block].tobytes(), content, parent))

    def _demote(self, block: int, stored: Stored) -> None:
        """The host tier gives a block up: disk is next."""
        disk, pending = self.disk, self.pending
        if disk is None or pending is None:
            return
        disk_block = disk.put(stored)
        if disk_block is not None:
            pending.demote_host.append(block)
            pending.demote_disk.append(disk_block)
            pending.demote_keys.append(stored.digest())
            self._totals.demoted_blocks += 1
