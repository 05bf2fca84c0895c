"""A device made of dictionaries, and digests that collide: what the cache tests check the books against."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kvbench.cache.content import HASH_FUNCTIONS, Content, sha256_digest
from kvbench.cache.manager import make_manager
from kvbench.cache.types import CacheGroup, CacheSettings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvbench.cache.paged import PagedManager
    from kvbench.cache.transfers import Transfers
    from kvbench.cache.types import Int32s

HASH_FUNCTIONS["constant"] = "tests.cache.machines:constant_digest"
HASH_FUNCTIONS["blind to the parent"] = "tests.cache.machines:parentless_digest"

EVICTIONS = ("lru", "fifo", "lfu", "lrc", "lrc-age", "priority")


def constant_digest(data: bytes) -> bytes:
    return b"the same for everything"


def parentless_digest(data: bytes) -> bytes:
    """Sees the last 16 bytes (one block of four tokens) and nothing of the parent."""
    return sha256_digest(data[-16:])


def ints(*values: int) -> Int32s:
    return np.array(values, dtype=np.int32)


def paged(
    num_blocks: int, *, groups: int = 1, windows: Sequence[int | None] | None = None, **changes: Any
) -> PagedManager:
    """A small paged manager: block size 4, prefix cache on. `windows` gives one for each group, None for a full one."""
    kinds = [CacheGroup()] * groups if windows is None else [window_group(window) for window in windows]
    given: dict[str, Any] = {
        "block_size": 4,
        "num_blocks": num_blocks,
        "max_sequences": 8,
        "max_context": 64,
        "groups": tuple(kinds),
        "prefix_cache": "hash",
    }
    manager: Any = make_manager(CacheSettings(**{**given, **changes}))
    return manager


def window_group(window: int | None) -> CacheGroup:
    return CacheGroup() if window is None else CacheGroup("window", window)


class Device:
    """KV memory as dictionaries slot → value. The KV of a token is what it depends on: salt and all tokens so far."""

    def __init__(self, block_size: int, num_groups: int = 1) -> None:
        self.block_size = block_size
        self.num_groups = num_groups
        self.device: dict[int, object] = {}
        self.host: dict[int, object] = {}

    def carry_out(self, transfers: Transfers) -> None:
        for source, target in zip(transfers.offload_device, transfers.offload_host, strict=True):
            self._copy(self.device, source, self.host, target)
        for source, target in zip(transfers.promote_host, transfers.promote_device, strict=True):
            self._copy(self.host, source, self.device, target)
        for source, target in zip(transfers.copy_source, transfers.copy_destination, strict=True):
            self._copy(self.device, source, self.device, target)

    def write(self, manager: PagedManager, row: int, content: Content, start: int, end: int) -> None:
        for group in range(self.num_groups):
            slots = manager.slots(ints(row), ints(start), ints(end - start), group).tolist()
            for position, slot in zip(range(start, end), slots, strict=True):
                self.device[slot] = kv_value(content, position, group)

    def assert_holds(
        self, manager: PagedManager, row: int, content: Content, end: int, query: int | None = None
    ) -> None:
        """Every slot of tokens [0, end) holds precisely that token's KV; in a window group those that a query at
        position `query` or later reads, by default the one at `end`."""
        first = end if query is None else query
        for group, kind in enumerate(manager.settings.groups):
            start = 0 if kind.window is None else min(end, max(0, first - kind.window + 1))
            slots = manager.slots(ints(row), ints(start), ints(end - start), group).tolist()
            for position, slot in enumerate(slots, start):
                assert self.device.get(slot) == kv_value(content, position, group), (row, position, slot)

    def _copy(self, source: dict[int, object], block: int, target: dict[int, object], to: int) -> None:
        for offset in range(self.block_size):
            target[to * self.block_size + offset] = source.get(block * self.block_size + offset)


def kv_value(content: Content, position: int, group: int) -> object:
    return group, content.salt, tuple(content.tokens[: position + 1].tolist())


def admit(manager: PagedManager, tokens: Sequence[int] | Content, hold: int | None = None, **options: Any) -> Any:
    """Plan and commit, with slots for the whole prompt unless `hold` is given; None when refused."""
    content = tokens if isinstance(tokens, Content) else Content(tokens)
    plan = manager.plan(content, content.length if hold is None else hold, **options)
    return manager.commit(plan) if plan.fits else None


def serve(manager: PagedManager, tokens: Sequence[int] | Content, **options: Any) -> int:
    """Admit, compute everything, carry out and complete all copies; returns the row."""
    content = tokens if isinstance(tokens, Content) else Content(tokens)
    admission = admit(manager, content, **options)
    assert admission is not None
    manager.complete(manager.take_transfers())
    manager.mark_computed(ints(admission.row), ints(content.length))
    manager.check_invariants()
    return int(admission.row)


def run_through(manager: PagedManager, tokens: Sequence[int] | Content, **options: Any) -> None:
    """`serve` and release."""
    manager.release(serve(manager, tokens, **options))
    manager.check_invariants()


def append(manager: PagedManager, row: int, length: int) -> None:
    manager.commit_append(manager.plan_append(ints(row), ints(length)))
