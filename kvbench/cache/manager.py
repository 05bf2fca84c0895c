"""The one door: from settings to a cache manager."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from kvbench.cache.content import HASH_FUNCTIONS
from kvbench.cache.eviction.policy import EVICTION_POLICIES
from kvbench.cache.prefix import PREFIX_CACHES
from kvbench.cache.reservations import RESERVATIONS
from kvbench.cache.tier_order import TIER_ORDERS
from kvbench.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvbench.cache.types import CacheManager, CacheSettings

ALLOCATORS = {
    "paged": "kvbench.cache.paged:PagedManager",
    "contiguous": "kvbench.cache.contiguous:ContiguousManager",
    "buddy": "kvbench.cache.contiguous:ContiguousManager",
}


def make_manager(settings: CacheSettings) -> CacheManager:
    """A manager over an empty pool.

    `UsageError` for a name that is not in its registry or a size below one, `CannotRunError` for a combination that
    the allocator cannot serve.
    """
    _check_names("allocator", settings.allocator, ALLOCATORS)
    _check_names("reservation", settings.reservation, RESERVATIONS)
    _check_names("prefix_cache", settings.prefix_cache, PREFIX_CACHES)
    _check_names("hash_function", settings.hash_function, HASH_FUNCTIONS)
    _check_names("eviction", settings.eviction, EVICTION_POLICIES)
    _check_names("host_eviction", settings.host_eviction, TIER_ORDERS)
    for name in ("block_size", "num_blocks", "max_sequences", "max_context"):
        if getattr(settings, name) < 1:
            raise UsageError(f"{name} is {getattr(settings, name)}", hint=f"{name} must be at least 1")
    if min(settings.lrc_alpha, settings.lrc_beta) < 0:
        raise UsageError("lrc_alpha and lrc_beta must not be negative", hint="they weigh references and age")
    for number in (settings.step_tokens, settings.decode_tokens, *(group.window for group in settings.groups)):
        if number is not None and number < 1:
            raise UsageError(f"a window or a step of {number} tokens", hint="both hold at least one token")
    if any((group.kind == "window") != (group.window is not None) for group in settings.groups):
        raise UsageError("a window group has a window, and no other group has one")
    if settings.host_blocks < 0 or not settings.groups:
        raise UsageError("host_blocks must not be negative, and there must be at least one layer group")
    _check_tiers(settings)
    module, _, name = ALLOCATORS[settings.allocator].partition(":")
    manager: CacheManager = getattr(import_module(module), name)(settings)
    return manager


def _check_tiers(settings: CacheSettings) -> None:
    if settings.host_blocks and settings.prefix_cache == "none":
        raise UsageError("a host tier extends the prefix cache", hint='set prefix_cache = "hash"')
    if settings.disk_blocks and not settings.host_blocks:
        raise UsageError("a disk tier lies below a host tier", hint="give the host tier some memory")
    if settings.offload_when not in ("evicted", "completed") or settings.store_threshold < 1:
        raise UsageError(
            f"offload_when {settings.offload_when!r} with a threshold of {settings.store_threshold} is not known",
            hint="evicted or completed, and a threshold of 1 or more",
        )
    if min(settings.disk_blocks, settings.swap_blocks) < 0:
        raise UsageError("disk_blocks and swap_blocks must not be negative")


def _check_names(key: str, name: str, known: Iterable[str]) -> None:
    if name not in known:
        raise UsageError(f"unknown {key} {name!r}", hint=f"choose one of {', '.join(known)}")
