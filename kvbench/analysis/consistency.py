"""Checks between cases that no case can make about itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

LATENCIES = tuple(
    f"{name}_{kind}_s" for name in ("ttft", "tpot", "e2e") for kind in ("mean", "p50", "p90", "p95", "p99")
)
_LEAST_LATENCIES = 2


def identical_latency(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Warnings `identical_latency` about case rows whose hit rates differ though every latency is the same to the last
    digit (M37): numbers that were copied, cached or made up.

    Each is {"name", "numbers", "samples"}, `samples` the (case_id, sample) of the rows concerned.
    """
    groups: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        values = tuple(_known(row.get(name)) for name in LATENCIES)
        if row.get("status") == "ok" and sum(v is not None for v in values) >= _LEAST_LATENCIES:
            groups.setdefault(values, []).append(row)
    return [warning for group in groups.values() if (warning := _judged(group))]


def _judged(group: list[Mapping[str, Any]]) -> dict[str, Any] | None:
    rates = [rate for row in group if (rate := _known(row.get("prefix_hit_rate"))) is not None]
    if len(rates) < 2 or min(rates) == max(rates):
        return None
    return {
        "name": "identical_latency",
        "numbers": {"hit_rate_min": min(rates), "hit_rate_max": max(rates)},
        "samples": [(row["case_id"], row["sample"]) for row in group],
    }


def _known(value: Any) -> float | None:
    """The number, None for a missing one; NaN is missing."""
    return None if value is None or value != value else float(value)
