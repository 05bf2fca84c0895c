"""Which metrics a report shows unasked: those that say something about the cases at hand.

A metric that no case has is left out. One that cannot differ by chance and is the same in every case is said once,
above the table; a zero there only where its absence would be missed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import NamedTuple

from kvbench.store.columns import Column

HEADLINES: dict[str, tuple[str, ...]] = {
    "engine": (
        "output_tokens_per_s", "spread", "ttft_p50_s", "tpot_p50_s", "goodput_per_s", "prefix_hit_rate",
        "tokens_per_decode", "accepted_share", "preemptions", "active_sequences_max", "kv_capacity_tokens",
        "prefill_tokens_per_busy_s", "decode_tokens_per_busy_s", "kv_error_rel_rms", "ttft_p95_s", "tpot_p95_s",
        "e2e_p95_s", "prefill_tokens_total", "filled_share", "kv_utilisation_peak", "internal_share_mean",
        "reserved_share_mean", "external_share_mean", "recomputed_tokens", "evictions", "prefix_lookup_s",
        "host_promotions", "disk_promotions", "promotion_stall_s", "host_offload_bytes", "host_promoted_bytes",
        "swap_out_bytes", "swap_in_bytes", "swap_refusals", "failed_copies", "copy_on_write_copies", "rollbacks",
        "passed_over_max", "block_table_bytes", "reblock_s", "reblock_bytes", "reblock_dropped_tokens", "e2e_p50_s",
    ),
    "kernel": (
        "decode_s", "spread", "bytes_per_s", "copy_share", "error_rel_rms", "iterations", "lag1_autocorrelation",
    ),
}  # fmt: skip
"""Most telling first: a narrow terminal drops columns from the end."""

DERIVED = {
    "spread": Column("spread", "float64", "", "Largest − smallest sample of the main metric, over its median."),
    "copy_share": Column("copy_share", "float64", "", "Bytes per second over the measured copy rate.", "higher"),
    "filled_share": Column(
        "filled_share", "float64", "", "Slots with a token over slots held by sequences, both over time.", "higher"
    ),
}

_NEEDS = {
    "evictions": "prefix_hit_rate",
    "prefix_lookup_s": "prefix_hit_rate",
    "tokens_per_decode": "accepted_share",
    "host_promoted_bytes": "host_promotions",
}
"""Metrics that say nothing where another one is missing or zero in every case."""
_TELLING_ZEROS = frozenset({"preemptions", "evictions", "prefix_hit_rate"})


class Selection(NamedTuple):
    """Metrics that are columns, and those that are said once with the value of all cases."""

    shown: list[str]
    same: dict[str, float]


def selected(kind: str, values: Mapping[str, Sequence[float | None]], settled: Set[str]) -> Selection:
    """From each metric's values by case. `settled`: metrics that chance does not change, such as counts."""
    found = Selection([], {})
    for name in HEADLINES[kind]:
        cells = values[name]
        if not _says_something(cells) or not any(values[_NEEDS[name]] if name in _NEEDS else (1,)):
            continue
        if len(cells) == 1 or len(set(cells)) > 1 or not (name in settled or not cells[0]):
            found.shown.append(name)
        elif cells[0] or name in _TELLING_ZEROS:
            found.same[name] = cells[0] or 0
    return found


def _says_something(cells: Sequence[float | None]) -> bool:
    return any(cell is not None for cell in cells)
