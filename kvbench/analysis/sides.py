"""Stored runs as the two sides of a comparison: which metrics are judged, and their values case by case."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvbench.errors import DataError, UsageError
from kvbench.store.case_columns import ENGINE_METRICS, KERNEL_METRICS, METRICS, warning_names

if TYPE_CHECKING:
    from kvbench.store.columns import Column
    from kvbench.store.run import Run

DEFAULT_METRICS = {
    "engine": ("output_tokens_per_s", "ttft_mean_s", "tpot_mean_s"),
    "kernel": ("decode_s",),
}
"""What is judged unasked: throughput and the two latencies of serving, one call of a kernel."""
_NAMES = {
    "engine": frozenset(column.name for column in ENGINE_METRICS),
    "kernel": frozenset(column.name for column in KERNEL_METRICS),
}
_OF_OTHER_KINDS = {"engine": _NAMES["kernel"] - _NAMES["engine"], "kernel": _NAMES["engine"] - _NAMES["kernel"]}
NEVER_TRIED = frozenset({"skipped", "oom", "oom_implied"})
"""Statuses of a case that does not fit: where it fits on no side there is nothing to judge."""


@dataclass(frozen=True, slots=True)
class Side:
    """One stored run: case id → sample → row (status, warnings and the chosen metrics)."""

    run_id: str
    rows: dict[str, dict[int, dict[str, Any]]]

    def samples(self, case_id: str) -> dict[int, dict[str, Any]]:
        return self.rows.get(case_id, {})

    def values(self, case_id: str, metric: str) -> dict[int, float]:
        """Sample → value; NaN where the sample did not end ok or the metric is missing."""
        return {number: _value(row, metric) for number, row in sorted(self.samples(case_id).items())}

    def has_any(self, case_id: str, metric: str) -> bool:
        """Whether some sample that ended ok has the metric, be it NaN (stored as missing, with a warning)."""
        rows = self.samples(case_id).values()
        return any(row["status"] == "ok" and (row.get(metric) is not None or _was_nan(row, metric)) for row in rows)

    def all_ok(self, case_id: str) -> bool:
        rows = self.samples(case_id).values()
        return bool(rows) and all(row["status"] == "ok" for row in rows)

    def never_tried(self, case_id: str) -> bool:
        """Whether every sample of the case says that it does not fit."""
        rows = self.samples(case_id).values()
        return bool(rows) and all(row["status"] in NEVER_TRIED for row in rows)

    def share_warned(self, case_id: str, warning: str) -> float:
        """Share of the samples that carry a warning."""
        rows = self.samples(case_id).values()
        return sum(warning in warning_names(row.get("warnings")) for row in rows) / len(rows) if rows else 0.0


def read_side(run: Run, metrics: Iterable[str]) -> Side:
    """The rows of a run with these metrics. `DataError` where there is no row at all."""
    rows: dict[str, dict[int, dict[str, Any]]] = {}
    for row in run.case_values(("warnings", *dict.fromkeys(metrics))):
        rows.setdefault(row["case_id"], {})[row["sample"]] = row
    if not rows:
        raise DataError(
            f"{run.path} holds no finished sample", hint=f"kvbench sweep --resume {run.path} goes on with it"
        )
    return Side(run.run_id, rows)


def chosen_metrics(names: Sequence[str]) -> list[Column]:
    """The metrics by name, each with a direction; `UsageError` for an unknown one or one that is neither good nor
    bad."""
    return [_named(name) for name in dict.fromkeys(names)]


def all_defaults() -> list[str]:
    return list(dict.fromkeys(name for names in DEFAULT_METRICS.values() for name in names))


def metrics_of_case(kind: str, chosen: Sequence[str], sides: Iterable[Side], case_ids: Iterable[str]) -> list[str]:
    """The metrics that say something about a case: the chosen ones, or its kind's usual ones, that some side has.

    A case that has none keeps its first, so that it does not go unnoticed; chosen ones do not apply where every sample
    ended ok without them.
    """
    wanted = of_kind(kind, chosen) if chosen else list(DEFAULT_METRICS.get(kind, ()))
    pairs = list(zip(sides, case_ids, strict=True))
    found = [name for name in wanted if any(side.has_any(case_id, name) for side, case_id in pairs)]
    does_not_apply = bool(chosen) and all(side.all_ok(case_id) for side, case_id in pairs)
    return found or ([] if does_not_apply else wanted[:1])


def of_kind(kind: str, chosen: Sequence[str]) -> list[str]:
    """The metrics without those that only cases of another kind can have."""
    return [name for name in chosen if name not in _OF_OTHER_KINDS.get(kind, ())]


def _was_nan(row: Mapping[str, Any], metric: str) -> bool:
    stored = row.get("warnings")
    if not isinstance(stored, str) or metric not in stored:
        return False
    try:
        return any(one["name"] == "not_a_number" and metric in one["numbers"] for one in json.loads(stored))
    except (ValueError, KeyError, TypeError):
        return False


def _named(name: str) -> Column:
    column = METRICS.get(name)
    if column is None:
        from difflib import get_close_matches

        close = get_close_matches(name, METRICS, n=3, cutoff=0.5)
        hint = f"did you mean {', '.join(close)}?" if close else "docs/results.md lists them all"
        raise UsageError(f"no metric {name!r}", hint=hint)
    if not column.better:
        raise UsageError(f"{name} is neither better higher nor better lower", hint="choose a time, a rate or a share")
    return column


def _value(row: Mapping[str, Any], metric: str) -> float:
    value = row.get(metric)
    if row.get("status") != "ok" or value is None or isinstance(value, bool):
        return math.nan
    return float(value)
