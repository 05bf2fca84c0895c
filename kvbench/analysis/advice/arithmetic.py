"""What a block size costs a length distribution, exactly and without measuring: waste, tables, capacity, lost hits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from kvbench.analysis.advice.blocks import held_blocks, held_bytes, most_blocks
from kvbench.analysis.advice.length_counts import LengthCounts, count_lengths
from kvbench.analysis.advice.lost_hits import HitBound, hit_bound
from kvbench.errors import UsageError
from kvbench.geometry.memory import TOKEN_HEAD, kv_bytes_per_token

if TYPE_CHECKING:
    from kvbench.analysis.advice.lengths import LengthSample
    from kvbench.analysis.advice.memory import Memory, Pool

BLOCK_SIZES = (4, 8, 16, 32, 64, 128, 256)


@dataclass(frozen=True, slots=True)
class BlockRow:
    """One block size under one length distribution, per device. Shares are of tokens stored, unless they say else.

    "At the end": a request's last step. "Over life": the mean over all decode steps of all requests, so that a request
    counts as long as it runs, which is what a server holds at any one time.
    """

    block_size: int
    kv_dtype: str
    kv_scales: str
    kv_bytes_per_token: float
    """Over all layers, scales included, before any rounding"""
    block_bytes: int
    block_tables: int
    """Tables per sequence: 1, or one for each piece of a hybrid model"""
    table_bytes: int
    num_blocks: int
    pool_bytes: int
    end_waste_slots: float
    """Mean slots of the last block that hold no token when a request ends: mean of −T mod B"""
    end_waste_share: float
    life_waste_slots: float
    """The same at any moment of decoding"""
    life_waste_share: float
    life_unused_bytes_share: float
    """Of the bytes of all blocks held while decoding, those without a token that is still needed: tails, fronts of
    windows, padding between layer groups"""
    end_blocks: float
    """Mean blocks that a request may hold at its end (the cap that admission counts with)"""
    life_blocks: float
    """Mean blocks that a request holds while it decodes"""
    end_sequences: int
    """Sequences that fit when all are at their end: ⌊blocks / mean blocks at the end⌋, by memory alone"""
    end_tokens: int
    """Tokens of so many sequences"""
    life_sequences: int
    """Sequences that fit on average while they decode, by memory alone and without shared blocks"""
    life_tokens: int
    sequences: int
    """`life_sequences`, but no more than may be served at once"""
    limited_by: Literal["memory", "max_sequences"]
    too_long_requests: int
    """Rows whose blocks alone are more than the pool"""
    hits: HitBound | None
    """Prefix hits, where the source records sharing"""


def block_table(
    sample: LengthSample,
    memory: Memory,
    *,
    block_sizes: Sequence[int] = BLOCK_SIZES,
    kv_dtype: str = "bf16",
    kv_scales: str = TOKEN_HEAD,
) -> list[BlockRow]:
    """A row for every block size, smallest first.

    Raises `UsageError` where a request is longer than `memory.load.max_context` (`sample.fitting` leaves such ones out
    and says so), and `CannotRunError` where a device has no room for a block."""
    _require_fitting(sample, memory.load.max_context)
    counts = count_lengths(sample)
    per_token = float(kv_bytes_per_token(memory.rank, kv_dtype, kv_scales))
    sizes = sorted(set(block_sizes))
    return [_row(sample, counts, memory, size, (kv_dtype, kv_scales, per_token)) for size in sizes]


def _row(
    sample: LengthSample, counts: LengthCounts, memory: Memory, size: int, stored: tuple[str, str, float]
) -> BlockRow:
    pool = memory.pool(stored[0], stored[1], size)
    lengths = counts.lengths
    tails = -lengths % size
    end_waste, life_waste = int(counts.ends @ tails), int(counts.steps @ tails)
    held, most = held_blocks(pool.layout, lengths), most_blocks(pool.layout, lengths)
    end_blocks, life_blocks = int(counts.ends @ most), int(counts.steps @ held)
    end_sequences = pool.num_blocks * counts.requests // end_blocks
    life_sequences = pool.num_blocks * counts.total_steps // life_blocks
    most_served = memory.load.max_sequences
    return BlockRow(
        block_size=size,
        kv_dtype=stored[0],
        kv_scales=stored[1],
        kv_bytes_per_token=stored[2],
        block_bytes=pool.layout.block_bytes,
        block_tables=len(pool.layout.pieces),
        table_bytes=pool.table_bytes,
        num_blocks=pool.num_blocks,
        pool_bytes=pool.num_blocks * pool.layout.block_bytes,
        end_waste_slots=end_waste / counts.requests,
        end_waste_share=end_waste / counts.end_tokens,
        life_waste_slots=life_waste / counts.total_steps,
        life_waste_share=life_waste / counts.step_tokens,
        life_unused_bytes_share=_unused_share(counts, pool, life_blocks),
        end_blocks=end_blocks / counts.requests,
        life_blocks=life_blocks / counts.total_steps,
        end_sequences=end_sequences,
        end_tokens=end_sequences * counts.end_tokens // counts.requests,
        life_sequences=life_sequences,
        life_tokens=life_sequences * counts.step_tokens // counts.total_steps,
        sequences=min(life_sequences, most_served),
        limited_by="memory" if life_sequences <= most_served else "max_sequences",
        too_long_requests=int(counts.ends @ (most > pool.num_blocks).astype(np.int64)),
        hits=hit_bound(sample, size),
    )


def _unused_share(counts: LengthCounts, pool: Pool, life_blocks: int) -> float:
    needed = float(counts.steps @ held_bytes(pool.layout, counts.lengths).astype(np.float64))
    return 1 - needed / (life_blocks * pool.layout.block_bytes)


def _require_fitting(sample: LengthSample, max_context: int) -> None:
    over = sample.beyond(max_context)
    if over.requests:
        raise UsageError(
            f"{sample.label}: {over.requests:,} requests ({over.share:.2%}) are longer than the context of "
            f"{max_context:,} tokens (the longest has {over.longest_tokens:,})",
            hint="leave them out, or raise the longest context if the model is served beyond its config",
        )
