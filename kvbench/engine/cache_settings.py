"""From an engine's settings and sizes to those of its cache manager. Torch-free."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from kvbench.cache.types import CacheGroup, CacheSettings
from kvbench.engine.memory import decode_tokens, step_tokens, table_rows
from kvbench.geometry.memory import pool_layout

if TYPE_CHECKING:
    from kvbench.engine.memory import Sizes
    from kvbench.geometry.model import ModelGeometry
    from kvbench.spec.engine import EngineSettings


def cache_settings(
    g: ModelGeometry, settings: EngineSettings, sizes: Sizes, weight_dtype: str, scale_digest: str = ""
) -> CacheSettings:
    """Prefix keys name the model, its weights' dtype and the stored form with its static scales, so that no two of them
    ever share a block. One group per piece of the pool: groups, block tables and slots all follow `pool_layout`."""
    pieces = pool_layout(g, settings.kv_dtype, settings.block_size, settings.kv_scales).pieces
    identity = f"{g.name}|{g.source}|{g.family}|{weight_dtype}|{settings.kv_dtype}|{settings.kv_layout}|{scale_digest}"
    return CacheSettings(
        block_size=settings.block_size,
        num_blocks=sizes.num_blocks,
        max_sequences=table_rows(settings),
        max_context=sizes.max_context,
        groups=tuple(CacheGroup(piece.group.kind, piece.group.window) for piece in pieces),
        allocator=settings.allocator,
        reservation=settings.reservation,
        prefix_cache=settings.prefix_cache,
        hash_function=settings.hash_function,
        partial_block_reuse=settings.partial_block_reuse,
        eviction=settings.eviction,
        lrc_alpha=settings.lrc_alpha,
        lrc_beta=settings.lrc_beta,
        host_blocks=sizes.host_blocks,
        host_eviction=settings.host_eviction,
        disk_blocks=sizes.disk_blocks,
        offload_when=settings.offload_when,
        store_threshold=settings.store_threshold,
        swap_blocks=sizes.swap_blocks,
        namespace=hashlib.sha256(identity.encode()).digest(),
        step_tokens=step_tokens(settings),
        decode_tokens=decode_tokens(settings),
    )
