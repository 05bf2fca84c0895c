"""A report for machines: CSV and JSON, SI base units, names as in the store, missing values empty or null."""

from __future__ import annotations

from typing import Any

from kvbench.report.build import CaseLine, CaseTable, Report
from kvbench.report.claims import claim_records
from kvbench.tabulate import as_json, comma_separated


def csv_report(report: Report) -> str:
    """One row per case: kind, case_id, clock, axes, status, samples, front, then each metric as median, min and max."""
    axes = list(dict.fromkeys(name for table in report.tables for name in table.axes))
    metrics = list(
        dict.fromkeys(column.name for table in report.tables for column in (*table.metrics, *table.said_once))
    )
    head = ["kind", "case_id", "clock", *axes, "status", "samples", "ok_samples", "pareto"]
    head += [f"{name}{ending}" for name in metrics for ending in ("", "_min", "_max")]
    return comma_separated(
        head, [_csv_row(report.clock, table, line, axes, metrics) for table in report.tables for line in table.lines]
    )


def json_report(report: Report) -> str:
    """The whole report as one object; `metrics` of a case map a name to median, min, max and count."""
    return as_json(
        {
            "run_id": report.run_id,
            "suite": report.suite,
            "title": report.title,
            "clock": report.clock,
            "constants": {table.kind: table.constants for table in report.tables},
            "cases": [_json_case(table, line) for table in report.tables for line in table.lines],
            "claims": claim_records(report.claims),
            "notes": report.notes,
        }
    )


def _csv_row(clock: str, table: CaseTable, line: CaseLine, axes: list[str], metrics: list[str]) -> list[Any]:
    row = [table.kind, line.case_id, clock, *(line.axes.get(name) for name in axes), line.status, line.samples]
    row += [line.ok_samples, line.is_pareto]
    for name in metrics:
        spread = line.summary.metrics.get(name) if line.summary else None
        row += [line.value(name), spread.low if spread else None, spread.high if spread else None]
    return row


def _json_case(table: CaseTable, line: CaseLine) -> dict[str, Any]:
    summary = line.summary
    return {
        "kind": table.kind,
        "case_id": line.case_id,
        "axes": line.axes,
        "facts": {name: line.facts.get(name) for name in table.facts},
        "status": line.status,
        "samples": line.samples,
        "ok_samples": line.ok_samples,
        "pareto": line.is_pareto,
        "metrics": {column.name: _json_metric(line, column.name) for column in (*table.metrics, *table.said_once)},
        "warnings": [{"name": n, "numbers": numbers} for n, numbers in summary.warnings] if summary else [],
        "errors": summary.errors if summary else [],
    }


def _json_metric(line: CaseLine, name: str) -> dict[str, Any] | None:
    value = line.value(name)
    spread = line.summary.metrics.get(name) if line.summary else None
    if spread is None:
        return None if value is None else {"median": value}
    return {"median": spread.median, "min": spread.low, "max": spread.high, "count": spread.count}
