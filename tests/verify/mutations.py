"""Faults planted into the cache and the scheduler, one at a time; `kvbench verify` must find each of them.

Each takes pytest's monkeypatch and breaks one promise of the code, the way a slip of the hand would.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from kvbench.cache import (
    admission,
    books,
    content,
    growth,
    hash_index,
    paged,
    pool,
    prefix,
    publishing,
    tables,
    tier,
    windows,
)
from kvbench.cache.eviction import lru
from kvbench.engine import sequence

Mutation = Callable[[pytest.MonkeyPatch], None]


def _skip_a_decref(patch: pytest.MonkeyPatch) -> None:
    """The first block of every release keeps its owner."""
    release = pool.BlockPool.release
    patch.setattr(pool.BlockPool, "release", lambda self, blocks: release(self, blocks[1:]))


def _publish_a_block_early(patch: pytest.MonkeyPatch) -> None:
    """A block is published when it is merely begun."""
    publish = publishing.publish_progress

    def early(books_: Any, rows: Any, computed: Any) -> None:
        ends = [-(-int(end) // books_.block_size) * books_.block_size for end in computed]
        known = [books_.tables.contents[row].length for row in rows]
        publish(books_, rows, np.array([e if e <= k else c for e, k, c in zip(ends, known, computed)], np.int32))  # noqa: B905

    patch.setattr(paged, "publish_progress", early)


def _publish_before_the_step(patch: pytest.MonkeyPatch) -> None:
    """Blocks are published when their slots are assigned, before their tokens are computed (E09)."""
    commit = paged.commit_growth

    def eager(books_: Any, plan: Any) -> None:
        commit(books_, plan)
        if books_.caching:
            rows = plan.rows.astype(np.int64)
            known = np.array([books_.tables.contents[row].length for row in rows], np.int32)
            publishing.publish_progress(books_, rows, np.minimum(known, plan.new_lengths))

    patch.setattr(paged, "commit_growth", eager)


def _hits_stay_evictable(patch: pytest.MonkeyPatch) -> None:
    """A hit is not taken out of the eviction order (E06)."""
    patch.setattr(lru.LruLog, "forget", lambda self, blocks: None)


def _no_copy_on_write(patch: pytest.MonkeyPatch) -> None:
    """A shared or published tail is written in place."""
    patch.setattr(growth, "_copies", lambda *_: [])


def _copies_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    """Copies, offloads and promotions are decided and never carried out."""
    take = paged.PagedManager.take_transfers

    def nothing(self: Any) -> Any:
        take(self)
        return paged.Transfers()

    patch.setattr(paged.PagedManager, "take_transfers", nothing)


def _transfers_are_never_complete(patch: pytest.MonkeyPatch) -> None:
    """Pins of finished copies are kept."""
    patch.setattr(paged.PagedManager, "complete", lambda self, transfers: [])


def _free_a_block_twice(patch: pytest.MonkeyPatch) -> None:
    """The free list gets the last block of a release twice."""
    push = pool.BlockPool._push_free
    patch.setattr(pool.BlockPool, "_push_free", lambda self, blocks: push(self, np.append(blocks, blocks[-1:])))


def _release_head_first(patch: pytest.MonkeyPatch) -> None:
    """Parents are cached as older than their children."""
    take = tables.BlockTables._take_entries
    patch.setattr(tables.BlockTables, "_take_entries", lambda self, row, first: take(self, row, first)[::-1].copy())


def _believe_the_digest(patch: pytest.MonkeyPatch) -> None:
    """A hit is whatever has the key; tokens and parents are not compared (E20)."""

    def find(self: Any, keys: Any, tokens: Any, root: int) -> Any:
        found = []
        for key in keys:
            if key not in self.blocks:
                break
            found.append(self.blocks[key])
        return np.array(found, np.int64)

    patch.setattr(hash_index.HashIndex, "find", find)


def _ignore_salts(patch: pytest.MonkeyPatch) -> None:
    """All tenants share one namespace (E22)."""
    root, root_id = content.KeyChain.root, prefix.Labels.root_id
    patch.setattr(content.KeyChain, "root", lambda self, salt: root(self, None))
    patch.setattr(prefix.Labels, "root_id", lambda self, salt: root_id(self, None))


def _count_hits_as_supply(patch: pytest.MonkeyPatch) -> None:
    """Cached hits are counted as blocks that may still be taken (E05)."""
    look_up = admission.look_up

    def forgetful(books_: Any, sequence_content: Any) -> Any:
        groups, common = look_up(books_, sequence_content)
        for hits in groups:
            hits.was_cached = np.zeros(len(hits.was_cached), bool)
        return groups, common

    patch.setattr(admission, "look_up", forgetful)


def _forget_promises(patch: pytest.MonkeyPatch) -> None:
    """Room promised to rows counts as supply."""
    patch.setattr(books.Books, "supply", lambda self: self.pool.free + self.pool.cached)


def _slots_are_off_by_one(patch: pytest.MonkeyPatch) -> None:
    """The last token of a step is written one slot further."""
    slots = tables.BlockTables.slots

    def shifted(self: Any, rows: Any, starts: Any, counts: Any, group: int) -> Any:
        found = slots(self, rows, starts, counts, group)
        if len(found) and found[-1] % self.block_size != self.block_size - 1:
            found[-1] += 1
        return found

    patch.setattr(tables.BlockTables, "slots", shifted)


def _evict_pinned_host_blocks(patch: pytest.MonkeyPatch) -> None:
    """Room on the host is made from blocks that a copy reads or writes (E63)."""

    def make_room(self: Any, incoming: Any) -> bool:
        if not self.free:
            block = next(iter(self.blocks.values()))
            pins, self.pins[block] = self.pins[block], 0
            self.drop(block)
            self.pins[block] = pins
        return True

    patch.setattr(tier.Tier, "_make_room", make_room)


def _keep_progress_of_the_preempted(patch: pytest.MonkeyPatch) -> None:
    """A preempted sequence believes that its KV is still there (E45)."""
    sit_down = sequence.Sequence.sit_down

    def sit(self: Any, row: int, cached_tokens: int, held: int) -> None:
        before = self.high_water
        sit_down(self, row, cached_tokens, held)
        self.prefilled = max(self.prefilled, min(before, self.length - 1))

    patch.setattr(sequence.Sequence, "sit_down", sit)


def _evicted_blocks_stay_in_the_index(patch: pytest.MonkeyPatch) -> None:
    """An evicted block can still be found by its key (E02)."""

    def remove(self: Any, blocks: Any) -> list[int]:
        self._pool.content_ids[blocks] = 0
        return []

    patch.setattr(hash_index.HashIndex, "remove", remove)


def _the_last_owner_frees_all(patch: pytest.MonkeyPatch) -> None:
    """A release frees blocks that others still hold."""
    release = pool.BlockPool.release

    def careless(self: Any, blocks: Any) -> Any:
        self.refs[blocks] = 1
        return release(self, blocks)

    patch.setattr(pool.BlockPool, "release", careless)


def _hit_the_whole_prompt(patch: pytest.MonkeyPatch) -> None:
    """A prompt that is cached whole computes nothing (E12)."""
    look_up = admission.look_up

    def greedy(books_: Any, own: Any) -> Any:
        longer = content.Content(np.append(own.tokens, 0), salt=own.salt)
        return look_up(books_, longer)

    patch.setattr(admission, "look_up", greedy)


def _free_a_window_block_early(patch: pytest.MonkeyPatch) -> None:
    """A window's block goes one step before its last position has been read (E47)."""
    freed = windows.Windows._freed
    patch.setattr(windows.Windows, "_freed", lambda self, kind, computed: freed(self, kind, computed + 1))
    patch.setattr(windows, "slide", _slide_early(windows.slide))
    patch.setattr(paged, "slide", _slide_early(paged.slide))


def _slide_early(slide: Any) -> Any:
    def early(books_: Any, windows_: Any, rows: Any, computed: Any) -> None:
        slide(books_, windows_, rows, computed + 1)

    return early


def _believe_failed_copies(patch: pytest.MonkeyPatch) -> None:
    """What a failed copy left is read as if it had arrived."""
    patch.setattr(paged.PagedManager, "fail", lambda self, transfers: self.complete(transfers))


def _compute_before_arrival(patch: pytest.MonkeyPatch) -> None:
    """A sequence is scheduled while its blocks are on their way."""
    patch.setattr(paged.PagedManager, "is_loading", lambda self, row: False)


def _swap_in_the_wrong_order(patch: pytest.MonkeyPatch) -> None:
    """The blocks of a swapped sequence come back in reverse."""
    take = paged.PagedManager.take_transfers

    def reverse(self: Any) -> Any:
        transfers = take(self)
        transfers.swap_in_swap.reverse()
        return transfers

    patch.setattr(paged.PagedManager, "take_transfers", reverse)


def _read_another_file(patch: pytest.MonkeyPatch) -> None:
    """A block comes up from a file that holds other contents (E75)."""
    take = paged.PagedManager.take_transfers

    def shift(self: Any) -> Any:
        transfers = take(self)
        if len(transfers.load_disk) > 1:
            transfers.load_disk.append(transfers.load_disk.pop(0))
        return transfers

    patch.setattr(paged.PagedManager, "take_transfers", shift)


def _store_while_it_is_written(patch: pytest.MonkeyPatch) -> None:
    """The device block under a store may be handed out before the copy is done (E62, E63)."""
    pin = pool.BlockPool.pin

    def only_used(self: Any, block: int) -> None:
        pin(self, block)
        self.pins[block] -= 1
        if not self.pins[block]:
            self.in_transfer -= 1
            self.state[block] = pool.USED

    patch.setattr(pool.BlockPool, "pin", only_used)
    patch.setattr(pool.BlockPool, "unpin", lambda self, block: False)


MUTATIONS: dict[str, Mutation] = {
    mutation.__name__.removeprefix("_"): mutation
    for mutation in (
        _skip_a_decref,
        _publish_a_block_early,
        _publish_before_the_step,
        _hits_stay_evictable,
        _no_copy_on_write,
        _copies_are_forgotten,
        _transfers_are_never_complete,
        _free_a_block_twice,
        _release_head_first,
        _believe_the_digest,
        _ignore_salts,
        _count_hits_as_supply,
        _forget_promises,
        _slots_are_off_by_one,
        _evict_pinned_host_blocks,
        _keep_progress_of_the_preempted,
        _evicted_blocks_stay_in_the_index,
        _the_last_owner_frees_all,
        _hit_the_whole_prompt,
        _free_a_window_block_early,
        _believe_failed_copies,
        _compute_before_arrival,
        _swap_in_the_wrong_order,
        _read_another_file,
        _store_while_it_is_written,
    )
}
