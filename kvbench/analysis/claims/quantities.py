"""Quantities that follow from several metrics of one sample; None where one of them is missing."""

from __future__ import annotations

from kvbench.analysis.claims.evidence import Row


def filled_share(row: Row) -> float | None:
    """Slots with a token over slots that sequences hold, both over time."""
    held, internal, reserved = (
        row.get(name) for name in ("kv_utilisation_mean", "internal_share_mean", "reserved_share_mean")
    )
    return 1 - ((internal or 0) + (reserved or 0)) / held if held else None


def kv_bytes_per_token(row: Row) -> float | None:
    """Bytes of the pool over the tokens that it has room for."""
    size, tokens = row.get("kv_capacity_bytes"), row.get("kv_capacity_tokens")
    return size / tokens if size and tokens else None


def prefill_tokens_per_turn(row: Row) -> float | None:
    """Prompt tokens computed for a request, without what a preemption made necessary."""
    computed, requests = row.get("prefill_tokens_total"), row.get("requests_total")
    return (computed - (row.get("recomputed_tokens") or 0)) / requests if computed and requests else None


def held_tokens_per_sequence(row: Row) -> float | None:
    """Slots that a sequence holds, in tokens of all layers, mean over time."""
    share, tokens, sequences = (
        row.get(name) for name in ("kv_utilisation_mean", "kv_capacity_tokens", "active_sequences_mean")
    )
    return share * tokens / sequences if share and tokens and sequences else None


def rejected_drafts(row: Row) -> float | None:
    """Draft tokens that were verified and rejected."""
    drafted, accepted = row.get("draft_tokens_total"), row.get("accepted_tokens_total")
    return None if drafted is None or accepted is None else drafted - accepted


def copy_over_computing(row: Row) -> float | None:
    """What a promoted block made a step wait, over what computing its tokens takes at the sample's prefill speed."""
    promoted = (row.get("host_promotions") or 0) + (row.get("disk_promotions") or 0)
    names = ("promotion_stall_s", "prefill_tokens_per_busy_s", "kv_blocks_total", "kv_capacity_tokens")
    stall, speed, blocks, tokens = (row.get(name) for name in names)
    if not promoted or not speed or not blocks or not tokens or stall is None:
        return None
    return float((stall / promoted) / (tokens / blocks / speed))
