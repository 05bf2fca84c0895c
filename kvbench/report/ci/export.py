"""A run's metrics in the forms of two services that draw them over time: github-action-benchmark and Bencher."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

from kvbench.analysis.sides import chosen_metrics, metrics_of_case, read_side
from kvbench.errors import DataError
from kvbench.store.case_columns import METRICS
from kvbench.store.run import Run
from kvbench.tabulate import one_line

Row = tuple[str, str, list[float]]


def _rows(run: Run, metrics: Sequence[str]) -> list[Row]:
    """(case, metric, values of the samples that ended ok). `DataError` where nothing is left."""
    chosen_metrics(metrics)
    from kvbench.analysis.sides import all_defaults

    side = read_side(run, metrics or all_defaults())
    found: list[Row] = []
    for case in run.plan["cases"]:
        case_id, label = case["case_id"], str(case.get("label") or case["case_id"])
        for name in metrics_of_case(str(case.get("kind", "engine")), metrics, (side,), (case_id,)):
            values = [value for value in side.values(case_id, name).values() if math.isfinite(value)]
            found += [(one_line(label), name, values)] if values else []
    if not found:
        raise DataError(f"{run.path} has no value of these metrics", hint="docs/results.md lists them all")
    return found


def _benchmark_action(better: str) -> Callable[[Run, Sequence[str]], list[dict[str, Any]]]:
    """An array for `tool: customSmallerIsBetter` or `customBiggerIsBetter`: the tool takes one direction a file."""

    def make(run: Run, metrics: Sequence[str]) -> list[dict[str, Any]]:
        rows = [row for row in _rows(run, metrics) if METRICS[row[1]].better == better]
        if not rows:
            raise DataError(f"no metric of {run.path} is better {better}", hint="choose one with --metric")
        suite = run.plan["suite"]["name"]
        return [
            {
                "name": f"{suite} {label} {name}",
                "unit": METRICS[name].unit or "1",
                "value": median(values),
                "range": f"± {(max(values) - min(values)) / 2:.3g}",
                "extra": f"{len(values)} samples, run {run.run_id}",
            }
            for label, name, values in rows
        ]

    return make


def _bencher(run: Run, metrics: Sequence[str]) -> dict[str, Any]:
    """Bencher Metric Format: benchmark → measure → value with the lowest and highest sample."""
    found: dict[str, Any] = {}
    suite = run.plan["suite"]["name"]
    for label, name, values in _rows(run, metrics):
        measures = found.setdefault(f"{suite} {label}", {})
        measures[name] = {"value": median(values), "lower_value": min(values), "upper_value": max(values)}
    return found


EXPORTS: dict[str, Callable[[Run, Sequence[str]], Any]] = {
    "github-action-smaller": _benchmark_action("lower"),
    "github-action-bigger": _benchmark_action("higher"),
    "bencher": _bencher,
}
"""Name on the command line → what makes the JSON."""
