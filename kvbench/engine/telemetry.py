"""What the engine exports for every step and every request (docs/engine.md, "Records"). Torch-free.

Times are seconds since the start of the workload, by the engine's clock. Counters are per step, not running totals.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray


@dataclass(slots=True)
class StepRecord:
    """One engine step; field names are the columns of `steps.parquet`."""

    step: int
    t_s: float
    """Start of the step."""
    duration_s: float
    batch_size: int
    prefill_tokens: int
    decode_tokens: int
    context_tokens: int
    """KV tokens read by attention in this step."""
    active_sequences: int
    waiting_sequences: int
    kv_capacity_bytes: int
    kv_bytes_used: int
    kv_blocks_total: int
    kv_blocks_free: int
    live_cached_tokens: int
    internal_slots: int
    reserved_slots: int
    external_blocks: int
    admissions: int
    preemptions: int
    evictions: int
    prefix_cache_queries: int
    prefix_cache_hits: int
    host_offload_bytes: int
    host_promotions: int
    """Blocks promoted from the host tier."""
    promotion_stall_s: float
    """Time the step waited for blocks from host, disk or swap area."""
    copy_on_write_copies: int
    readmission_queries: int = 0
    """Tokens looked up by sequences that come back after a preemption."""
    readmission_hits: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    """Drafts that became output: tokens beyond the one that every decode brings."""
    rollbacks: int = 0
    """Sequences whose block table was cut back."""
    disk_offload_bytes: int = 0
    disk_promotions: int = 0
    swap_out_bytes: int = 0
    swap_in_bytes: int = 0
    swap_refusals: int = 0
    """Preempted sequences that should have been swapped and were recomputed: no room, or blocks on their way."""
    failed_copies: int = 0
    """Block copies that left nothing readable; what they would have brought was computed again."""
    host_bytes_used: int = 0
    """Blocks that the host tier holds at the end of the step."""
    disk_bytes_used: int = 0
    swap_bytes_used: int = 0
    prefix_lookup_s: float = 0.0
    """Time spent looking prompts up in the prefix cache and planning their admission; 0 by a virtual clock."""
    sampled_rows: int = 0
    """Rows that went through the output head."""
    decode_reads: int = 0
    """This and the next three are summed over all layers, each within its window (`costmodel/features.py`)."""
    prefill_reads: int = 0
    prefill_pairs: int = 0
    block_reads: int = 0


@dataclass(slots=True)
class RequestRecord:
    """One request from scheduled arrival to its end; field names are the columns of `requests.parquet`.

    `queue_time_s` arrival → first scheduled; `prefill_time_s` → first token; `decode_time_s` → last token.
    `itl_s` has `output_tokens − 1` gaps, TTFT never among them; tokens of one step share theirs (M31).
    `finish_reason`: length, stop, rejected or error.
    """

    request_id: int
    arrival_s: float
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    """Prompt tokens found in the prefix cache at the first admission, promotions included."""
    allocated_blocks: int
    """Most blocks held at once."""
    queue_time_s: float | None
    prefill_time_s: float | None
    decode_time_s: float | None
    ttft_s: float | None
    tpot_s: float | None
    e2e_s: float | None
    preemptions: int
    finish_reason: str
    error: str | None = None
    itl_s: list[float] = field(default_factory=list)
    recomputed_tokens: int = 0
    """Tokens whose KV was computed again after a preemption."""
    priority: int = 0
    """Higher is more important."""
    passed_over: int = 0
    """Admissions, while it waited, of requests that joined the queue after it."""
    draft_tokens: int = 0
    accepted_tokens: int = 0
    piece_at_s: Sequence[float] = ()
    """When each step that computed a piece of the prompt, or KV again, was scheduled; empty if one step did it all."""
    piece_tokens: Sequence[int] = ()
    """Their tokens."""
    preempted_at_s: Sequence[float] = ()
    """When it lost its blocks, `preemptions` times."""
    resumed_at_s: Sequence[float] = ()
    """When it computed something again after each; fewer when it never did."""
    swapped_at_s: Sequence[float] = ()
    """Those of `preempted_at_s` at which its blocks went to the swap area."""


def step_column(steps: Sequence[StepRecord], name: str) -> NDArray[np.float64]:
    """`[steps]` one field of every step."""
    return np.array([getattr(step, name) for step in steps], dtype=np.float64)
