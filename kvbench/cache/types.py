"""What goes in and out of the cache manager.

Block ids run from 1 to `num_blocks`; block 0 is the null block, the placeholder of unused table entries.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from kvbench.errors import InternalError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvbench.cache.content import Content
    from kvbench.cache.swap import Swapped
    from kvbench.cache.transfers import Transfers

NULL_BLOCK = 0
Int32s = NDArray[np.int32]
Int64s = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class CacheGroup:
    """Layers that share a block table, as the bookkeeping sees them: one piece of `geometry.memory.pool_layout`.

    A query at position p of a `window` group reads positions max(0, p − window + 1) … p; blocks below are freed."""

    kind: Literal["full", "window", "latent"] = "full"
    window: int | None = None


@dataclass(frozen=True, slots=True)
class CacheSettings:
    """Sizes and policies of one manager. `namespace` is mixed into every prefix key (model, KV dtype …).

    `step_tokens` and `decode_tokens` cap what a window group may hold, and so what is promised to it."""

    block_size: int
    num_blocks: int
    max_sequences: int
    max_context: int
    groups: tuple[CacheGroup, ...] = (CacheGroup(),)
    allocator: str = "paged"
    reservation: str = "max"
    prefix_cache: str = "none"
    hash_function: str = "xxh3-128"
    partial_block_reuse: bool = False
    eviction: str = "lru"
    lrc_alpha: float = 1.0
    lrc_beta: float = 1.0
    host_blocks: int = 0
    host_eviction: str = "lru"
    disk_blocks: int = 0
    offload_when: str = "evicted"
    store_threshold: int = 1
    """`completed`: contents go down once they were seen so many times"""
    swap_blocks: int = 0
    namespace: bytes = b""
    symbolic: bool = False
    """Contents are `SymbolicContent`: named, without tokens"""
    step_tokens: int | None = None
    """Most tokens of one sequence that a step computes while not all of its known tokens are computed; None: all"""
    decode_tokens: int = 1
    """Most tokens that a step adds to a sequence whose known tokens are computed: 1, and the drafts"""


# Plans are made on every step and nobody changes them; they are not frozen, because a frozen dataclass pays for each
# field that it sets.


@dataclass(slots=True)
class Plan:
    """What one admission would do; `commit` does exactly this or raises. Valid until the manager's next change."""

    content: Content
    fits: bool
    cached_tokens: int
    """Tokens at the front whose KV need not be computed (device hits and promotions)."""
    hold_tokens: int
    """Tokens that have a slot after the commit."""
    promise_tokens: int
    """Length up to which growth is promised: blocks set aside, not allocated."""
    new_blocks: int
    """Blocks taken from the pool (promotions included), over all groups."""
    promote_blocks: int
    evict_blocks: int
    """Cached blocks that lose their contents."""
    shortfall_blocks: int
    """Blocks missing when `fits` is False."""
    epoch: int
    """The manager's change counter when the plan was made."""
    detail: object = None
    """The manager's own part of the plan."""
    spare_blocks: int = 0
    """Blocks that a newcomer could still take after the commit: free and cached ones that are promised to nobody."""


@dataclass(slots=True)
class AppendPlan:
    """What growing the given sequences in one go would do."""

    rows: Int32s
    new_lengths: Int32s
    fits: bool
    new_blocks: int
    shortfall_blocks: int
    epoch: int
    detail: object = None


@dataclass(frozen=True, slots=True)
class Admission:
    """A sequence that now has a row in the block tables. `cached_tokens` includes `promoted_tokens`."""

    row: int
    cached_tokens: int
    promoted_tokens: int


@dataclass(slots=True)
class CacheStats:
    """State and running totals; tokens unless the name says blocks. `external_blocks`: free blocks that cannot
    serve the next admission for want of adjacency (contiguous allocator; 0 when paged)."""

    blocks_total: int = 0
    blocks_free: int = 0
    blocks_cached: int = 0
    blocks_used: int = 0
    blocks_in_transfer: int = 0
    live_cached_tokens: int = 0
    internal_slots: int = 0
    reserved_slots: int = 0
    external_blocks: int = 0
    host_blocks_total: int = 0
    host_blocks_used: int = 0
    evictions: int = 0
    prefix_cache_queries: int = 0
    prefix_cache_hits: int = 0
    readmission_queries: int = 0
    readmission_hits: int = 0
    copy_on_write_copies: int = 0
    offloaded_blocks: int = 0
    promoted_blocks: int = 0
    disk_blocks_total: int = 0
    disk_blocks_used: int = 0
    demoted_blocks: int = 0
    swap_blocks_total: int = 0
    swap_blocks_used: int = 0
    swapped_out: int = 0
    swap_refusals: int = 0
    """Preempted sequences that found no room in the swap area"""


class WithoutTiers:
    """What a manager answers that has nothing below the device; for one to inherit."""

    def deferred_blocks(self) -> int:
        return 0

    def fail(self, transfers: Transfers) -> list[int]:
        raise InternalError(f"{len(transfers)} block copies failed, and none was asked for")

    def is_loading(self, row: int) -> bool:
        return False

    def swap_out(self, row: int) -> Swapped | None:
        return None

    def give_up_swapped(self, swapped: Swapped) -> None:
        raise InternalError("a sequence is to leave a swap area that does not exist")

    def switch_off_disk(self) -> None:
        raise InternalError("a disk tier is to be switched off that does not exist")


class CacheManager(Protocol):
    """The one door to the bookkeeping; the paged manager and the contiguous baseline both stand behind it.

    Units: lengths in tokens, rows are block-table rows. A refused plan changes nothing, not even the LRU order (E05).
    """

    settings: CacheSettings

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
        """What admitting this sequence takes. `hold_tokens` is the length that must have slots now, counted from
        token 0 (hits included); if hits alone reach further, hits win. Never covers the whole prompt by hits: at
        least the last known token is computed (E12).
        `readmission` counts look-ups and hits apart (E19). `fork_blocks`: blocks promised on top, over all groups, for
        the rows that will be forked from this one. With `swapped`, computed tokens come back from the swap area as far
        as the device does not have them."""
        ...

    def commit(self, plan: Plan) -> Admission:
        """Carry out a plan that fits."""
        ...

    def can_ever_fit(self, tokens: int) -> bool:
        """Whether an empty pool could hold one sequence of this length; exactly fitting is fitting (E26, E27)."""
        ...

    def plan_append(self, rows: Int32s, new_lengths: Int32s) -> AppendPlan:
        """What it takes for every row to have slots for `new_lengths` tokens, blocks to be copied on write included.
        A row's own promise is spent before the common supply."""
        ...

    def commit_append(self, plan: AppendPlan) -> None:
        """Carry out an append plan that fits: one vector operation, no loop over sequences."""
        ...

    def slots(self, rows: Int32s, starts: Int32s, counts: Int32s, group: int = 0) -> Int64s:
        """Flat slot ids (block · block_size + offset) of tokens [start, start + count) of each row, concatenated."""
        ...

    def table(self, rows: Int32s, width: int, group: int = 0) -> Int32s:
        """Block tables of the rows, `[len(rows), width]`; null where a row has no block, behind its end and, in a
        window group, before what its next query reads."""
        ...

    def mark_computed(self, rows: Int32s, lengths: Int32s) -> None:
        """KV of the first `length` tokens of each row is now written: full blocks are published (E09), and blocks
        that fell out of a window are let go (E47). Only what will never be rolled back may be marked."""
        ...

    def release(self, row: int) -> None:
        """The sequence is finished or preempted; its blocks go back tail-first, published ones stay cached."""
        ...

    def references(self, row: int) -> float:
        """How much others count on the row's blocks: other owners and lifetime hits, mean over its blocks."""
        ...

    def deferred_blocks(self) -> int:
        """Blocks of released rows that come back only when a copy under way is complete (E39)."""
        ...

    def fork_blocks(self, length: int, promise_tokens: int) -> int:
        """Blocks that a row forked at `length` takes for itself until it has `promise_tokens`: growth, and the copy of
        a tail that is shared and not full."""
        ...

    def fork(self, row: int, content: Content, promise_tokens: int = 0) -> int:
        """A new row that shares every block of `row`; the first write into a shared block copies it. The new row's
        promise is taken from what the promise of `row` holds for its forks (`plan(fork_blocks=…)`)."""
        ...

    def reorder(self, rows: Int32s, parents: Int32s, contents: Sequence[Content]) -> None:
        """Row i goes on with the blocks of `rows[parents[i]]` and with `contents[i]`; all at once (beam search).
        Blocks that no row goes on with are given back; promises stay with their rows."""
        ...

    def truncate(self, row: int, length: int) -> None:
        """Drop slots beyond `length` tokens (speculation rolled back). With window groups, only down to what is marked
        as computed, or as far as no window has moved on since."""
        ...

    def peak_blocks(self, row: int) -> int:
        """Most blocks that the row has held at once so far, over all groups."""
        ...

    def take_transfers(self) -> Transfers:
        """Copies decided since the last call; the caller carries them out before anything else touches KV."""
        ...

    def complete(self, transfers: Transfers) -> list[int]:
        """These copies are done, a part of those that were taken or all: blocks that have arrived become readable,
        pinned ones are let go. Returns rows as `fail` does: those whose blocks turn out to be copies of bad ones."""
        ...

    def fail(self, transfers: Transfers) -> list[int]:
        """These copies failed: nothing of what they would have written is ever found. Returns the rows that were to
        read it; they must be released before anything else is done with them."""
        ...

    def is_loading(self, row: int) -> bool:
        """Whether blocks of the row are still on their way: it must not be computed."""
        ...

    def swap_out(self, row: int) -> Swapped | None:
        """Preempt by swap: the row is released, its computed blocks are copied out first. None, and nothing changed,
        when that cannot be (E43)."""
        ...

    def give_up_swapped(self, swapped: Swapped) -> None:
        """The sequence will not come back from the swap area."""
        ...

    def switch_off_disk(self) -> None:
        """Forget all that lies on disk and store nothing there any more."""
        ...

    def stats(self) -> CacheStats: ...

    def reset(self) -> None:
        """Forget all cached contents and counters; no sequence may be live."""
        ...

    def check_invariants(self) -> None:
        """Raise `InternalError` naming the block or row when the books do not add up."""
        ...

    listener: Callable[[str, bytes], None] | None
    """Called with ("stored" | "removed", key) when the first copy of a block's contents appears / the last one goes."""
