"""Over the samples of a case: the median and the spread, because the unit of replication is the process."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

SMALLEST, LARGEST = 1e-30, 1e30
"""Of a plausible value; times in s, bytes, rates and shares are all far within."""


@dataclass(frozen=True, slots=True)
class Spread:
    """One metric over the samples of a case: median, smallest, largest, how many."""

    median: float
    low: float
    high: float
    count: int

    @property
    def relative_range(self) -> float:
        """(largest − smallest) over the median; 0 for a single sample."""
        return (self.high - self.low) / abs(self.median) if self.median else 0.0


@dataclass(slots=True)
class CaseSummary:
    """A case over its samples. `metrics` come from the samples that ended ok and nothing else."""

    case_id: str
    kind: str
    statuses: dict[str, int]
    metrics: dict[str, Spread]
    facts: dict[str, Any]
    """Columns with one value in all samples that have it: settings, model, device."""
    warnings: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    @property
    def ok_samples(self) -> int:
        return self.statuses.get("ok", 0)


def summarise(rows: Iterable[Mapping[str, Any]], metrics: Sequence[str]) -> list[CaseSummary]:
    """One summary per case, in the order of first appearance. `rows` are case rows, `metrics` the columns to condense;
    every other column that agrees over the samples is a fact."""
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault(row["case_id"], []).append(row)
    return [_summary(case_id, group, metrics) for case_id, group in groups.items()]


def is_plausible(value: Any) -> bool:
    """Whether a number can have been measured: not NaN, not endless, and 0 or of a size that something has. What is
    none of these would stretch every axis and table beyond reading."""
    if value is None or isinstance(value, bool):
        return False
    return bool(value == 0 or SMALLEST <= abs(value) <= LARGEST)


def spread(values: Iterable[Any]) -> Spread | None:
    """Median and range of the plausible values; None when there is none (never 0)."""
    known = [float(v) for v in values if is_plausible(v)]
    return Spread(median(known), min(known), max(known), len(known)) if known else None


def _summary(case_id: str, rows: list[Mapping[str, Any]], metrics: Sequence[str]) -> CaseSummary:
    good = [row for row in rows if row.get("status") == "ok"]
    found = {name: spread(row.get(name) for row in good) for name in metrics}
    return CaseSummary(
        case_id=case_id,
        kind=str(rows[0].get("kind") or "engine"),
        statuses=dict(Counter(str(row.get("status") or "unknown") for row in rows)),
        metrics={name: value for name, value in found.items() if value is not None},
        facts=_facts(rows, set(metrics)),
        warnings=[w for row in rows for w in stored_warnings(row)],
        errors=[str(row["error"]) for row in rows if row.get("error")],
    )


def _facts(rows: list[Mapping[str, Any]], metrics: set[str]) -> dict[str, Any]:
    """Columns with one value in all samples that have any: a crashed one may know less than the others."""
    names = dict.fromkeys(name for row in rows for name in row if name not in metrics)
    found = {}
    for name in names:
        values = [row[name] for row in rows if row.get(name) is not None]
        if values and all(value == values[0] for value in values):
            found[name] = values[0]
    return found


def stored_warnings(row: Mapping[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """(name, numbers) of the warnings in a case row; damaged text counts as one warning of that name."""
    try:
        found = json.loads(row.get("warnings") or "[]")
        return [(str(w["name"]), dict(w["numbers"] or {})) for w in found]
    except (ValueError, KeyError, TypeError):
        return [("unreadable_warnings", {})]
