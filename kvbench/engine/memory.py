"""From bytes to blocks: how many the engine gets, and the arithmetic when that is not enough. Torch-free."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvbench.cache.reservations import largest_piece
from kvbench.devices.host import Host
from kvbench.engine.kvstore.block_file import HEADER_BYTES
from kvbench.engine.speculation.geometry import draft_block_bytes
from kvbench.errors import CannotRunError, UsageError
from kvbench.geometry.memory import pool_layout
from kvbench.units import format_bytes

if TYPE_CHECKING:
    from kvbench.geometry.model import ModelGeometry
    from kvbench.spec.engine import EngineSettings

AUTO_SHARE = 0.5
"""Share of the free memory that `kv_memory = "auto"` takes when the engine resolves it itself."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """What the engine allocates. `block_bytes` covers all layers of a block, those of a draft model too."""

    num_blocks: int
    host_blocks: int
    block_bytes: int
    max_context: int
    disk_blocks: int = 0
    swap_blocks: int = 0


def plan_sizes(
    g: ModelGeometry, settings: EngineSettings, kv_memory_bytes: int | None, max_context: int | None, free_bytes: int
) -> Sizes:
    """Blocks for the given bytes; `CannotRunError` with the arithmetic when they cannot hold one sequence.

    `kv_memory_bytes` and `max_context` given here win over the settings; None leaves it to them. `auto` memory is a
    share of `free_bytes`, and no more than `max_sequences` of the longest sequences can use.
    """
    context = _max_context(g, settings, max_context)
    layout = pool_layout(g, settings.kv_dtype, settings.block_size, settings.kv_scales)
    block_bytes = layout.block_bytes + draft_block_bytes(g, settings)
    whole = layout.sequence_blocks(context, step_tokens(settings) if settings.allocator == "paged" else None)
    automatic = min(int(free_bytes * AUTO_SHARE), settings.max_sequences * whole * block_bytes)
    kv_bytes = _kv_bytes(settings, kv_memory_bytes, automatic)
    num_blocks = kv_bytes // block_bytes
    needed = whole if reserves_maximum(settings) else layout.sequence_blocks(1)
    if largest_piece(settings.allocator, num_blocks) < needed:
        raise CannotRunError(_too_small(g, settings, kv_bytes, block_bytes, needed), hint=_way_out(settings))
    one = layout.block_bytes
    return Sizes(
        num_blocks=num_blocks,
        host_blocks=0 if settings.offload == "none" else tier_blocks("host_memory", settings.host_memory, one),
        block_bytes=block_bytes,
        max_context=context,
        disk_blocks=disk_blocks(settings, one),
        swap_blocks=0 if settings.preemption == "recompute" else tier_blocks("swap_memory", settings.swap_memory, one),
    )


def disk_blocks(settings: EngineSettings, block_bytes: int) -> int:
    """Files that the disk tier may have, their headers counted."""
    if settings.offload != "host+disk":
        return 0
    return tier_blocks("disk_memory", settings.disk_memory, block_bytes + HEADER_BYTES)


def tier_blocks(name: str, size_bytes: int, block_bytes: int) -> int:
    """Blocks in a tier of `size_bytes`; `CannotRunError` when there is no room for one."""
    if size_bytes < block_bytes:
        raise CannotRunError(
            f"{name} of {format_bytes(size_bytes)} holds no block of {format_bytes(block_bytes)}",
            hint=f"give it {format_bytes(block_bytes)} or more",
        )
    return size_bytes // block_bytes


def table_rows(settings: EngineSettings) -> int:
    """Sequences that hold blocks at once: those that run, and as many that load meanwhile."""
    return settings.max_sequences * (2 if settings.promotion == "overlapped" else 1)


def reserves_maximum(settings: EngineSettings) -> bool:
    """Whether every sequence sets `max_context` slots aside."""
    return settings.allocator != "paged" and settings.reservation == "max"


def step_tokens(settings: EngineSettings) -> int | None:
    """Most tokens of one prompt that a step computes; None when prompts are computed whole."""
    return settings.max_batch_tokens if settings.batch_policy == "chunked" else None


def decode_tokens(settings: EngineSettings) -> int:
    """Most tokens that a step adds to a decoding sequence: one, and the drafts that are verified with it."""
    return 1 if settings.speculation == "none" else 1 + settings.draft_tokens


def _max_context(g: ModelGeometry, settings: EngineSettings, max_context: int | None) -> int:
    wanted = max_context if max_context is not None else settings.max_context
    if wanted == "auto":
        return g.max_context
    if not 1 <= int(wanted) <= g.max_context:
        raise UsageError(
            f"max_context {wanted} is outside 1 to {g.max_context}, the limit of {g.name}",
            hint='leave it at "auto" for the model\'s own limit',
        )
    return int(wanted)


def _kv_bytes(settings: EngineSettings, given: int | None, automatic: int) -> int:
    if given is not None:
        return given
    return automatic if settings.kv_memory == "auto" else int(settings.kv_memory)


def _too_small(g: ModelGeometry, settings: EngineSettings, kv_bytes: int, block_bytes: int, needed: int) -> str:
    what = "one reservation of the maximum" if reserves_maximum(settings) else "the shortest sequence"
    if settings.allocator == "buddy":
        what += ", whose blocks a buddy system must have in one piece of 2^k"
    return (
        f"KV memory of {format_bytes(kv_bytes)} is too small for {what}: {needed} blocks of {settings.block_size} "
        f"tokens × {block_bytes} bytes ({g.name}, {settings.kv_dtype}) = {format_bytes(needed * block_bytes)}"
    )


def _way_out(settings: EngineSettings) -> str:
    if reserves_maximum(settings):
        return "raise kv_memory or lower max_context, which is what every sequence reserves"
    return "raise kv_memory, or lower block_size"


def free_host_bytes() -> int:
    """Memory that a new allocation can get without swapping; half of the pages where the system does not say."""
    known = Host().available_bytes()
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2 if known is None else known
