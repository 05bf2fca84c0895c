"""A run as a report: tables of cases with raw values, what is the same everywhere said once, notes below.

Independent of any output format; `text.py` and `data.py` write it down.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvbench.analysis.claims import ClaimVerdict, verdicts
from kvbench.analysis.pareto import pareto_front
from kvbench.analysis.summary import CaseSummary, is_plausible, summarise
from kvbench.errors import DataError, UsageError
from kvbench.report.cells import setting_cell
from kvbench.report.headlines import DERIVED, HEADLINES, selected
from kvbench.report.notes import case_notes, consistency_notes, import_notes, value_notes
from kvbench.store.case_columns import METRICS
from kvbench.store.columns import Column
from kvbench.store.run import Run

PRIMARY = {"engine": "output_tokens_per_s", "kernel": "decode_s"}
_EMPTY = ("internal_share_mean", "reserved_share_mean")
PARETO = (("output_tokens_per_s", True), ("ttft_p50_s", False), ("tpot_p50_s", False))
_FACTS = (
    "model", "attention_mode", "device_name", "clock", "cost_model", "threads", "kv_memory", "sharing",
    "attention_backend", "buffers", "slo_ttft_s", "slo_tpot_s", "slo_e2e_s",
)  # fmt: skip


@dataclass(slots=True)
class CaseLine:
    """One case: axis values as the suite spells them, how its samples ended, its metrics."""

    case_id: str
    axes: dict[str, Any]
    facts: dict[str, Any]
    status: str
    ok_samples: int
    samples: int
    summary: CaseSummary | None
    is_pareto: bool = False

    def label(self, names: Sequence[str]) -> str:
        """The case in words by the given axes."""
        words = (f"{name}={setting_cell(name, self.axes[name])}" for name in names if name in self.axes)
        return " ".join(words) or self.case_id

    def value(self, name: str) -> float | None:
        """Median of a metric over the samples that ended ok; derived ones likewise."""
        found = self._value(name)
        return found if is_plausible(found) else None

    def _value(self, name: str) -> float | None:
        metrics = self.summary.metrics if self.summary else {}
        if name == "copy_share":
            rate, copy = self.value("bytes_per_s"), self.value("copy_bytes_per_s")
            return rate / copy if rate is not None and copy else None
        if name == "filled_share":
            held, *empty = (self.value(n) for n in ("kv_utilisation_mean", *_EMPTY))
            return 1 - sum(share or 0 for share in empty) / held if held else None
        if name == "spread":
            main = metrics.get(PRIMARY[self.summary.kind]) if self.summary else None
            return main.relative_range if main and main.count > 1 else None
        return metrics[name].median if name in metrics else None


@dataclass(slots=True)
class CaseTable:
    """The cases of one kind. `metrics` in the order in which they give way on a narrow terminal, last one first."""

    kind: str
    axes: list[str]
    key_axes: list[str]
    """Few axes that tell all cases apart; the others follow from them."""
    facts: list[str]
    metrics: list[Column]
    lines: list[CaseLine]
    constants: dict[str, Any]
    best: set[tuple[str, str]] = field(default_factory=set)
    """(case_id, metric) of the best values."""
    said_once: list[Column] = field(default_factory=list)
    """Metrics that are the same in every case: in `constants`, and in the formats for machines."""
    has_pareto: bool = False
    is_chosen: bool = False
    """The metrics were asked for by name, or all were."""


@dataclass(slots=True)
class Report:
    """A run in tables. `notes` are warnings and errors in words; text from outside is not yet escaped."""

    run_id: str
    suite: str
    title: str
    tables: list[CaseTable]
    notes: list[str]
    clock: str = "wall"
    claims: list[ClaimVerdict] = field(default_factory=list)
    """Whether each part of the suite's claim held in this run."""


def build_report(run: Run, metrics: Sequence[str] = (), *, show_all: bool = False) -> Report:
    """The report of a run, sealed or not. `metrics` replaces the headline columns; unknown names are a `UsageError`,
    a run without any finished sample a `DataError`."""
    rows = run.case_rows
    if not rows:
        raise DataError(
            f"{run.path} holds no finished sample",
            hint=f"kvbench sweep --resume {run.path} takes the measurement up again",
        )
    summaries = {summary.case_id: summary for summary in summarise(rows, list(METRICS))}
    chosen = [_named(name) for name in metrics]
    lines = [_line(case, summaries.get(case["case_id"])) for case in run.plan["cases"]]
    kinds = {case["case_id"]: case.get("kind", "engine") for case in run.plan["cases"]}
    tables = [
        _table(kind, found, chosen, show_all)
        for kind in ("engine", "kernel")
        if (found := [line for line in lines if kinds[line.case_id] == kind])
    ]
    suite = run.plan["suite"]
    labels = {line.case_id: line.label(table.key_axes) for table in tables for line in table.lines}
    notes = [*value_notes(rows, labels), *case_notes(summaries.values(), labels)]
    notes += [*consistency_notes(rows, labels), *import_notes(run.plan)]
    clock = str(run.plan.get("clock", "wall"))
    return Report(run.run_id, str(suite["name"]), str(suite.get("title") or ""), tables, notes, clock, verdicts(run))


def _named(name: str) -> Column:
    found = METRICS.get(name) or DERIVED.get(name)
    if found is None:
        from difflib import get_close_matches

        close = get_close_matches(name, [*METRICS, *DERIVED], n=3, cutoff=0.5)
        raise UsageError(
            f"no metric {name!r}",
            hint=f"did you mean {', '.join(close)}?" if close else "docs/results.md lists them all",
        )
    return found


def _line(case: dict[str, Any], summary: CaseSummary | None) -> CaseLine:
    statuses = summary.statuses if summary else {}
    return CaseLine(
        case_id=case["case_id"],
        axes=case.get("axes", {}),
        facts=summary.facts if summary else {},
        status=", ".join(statuses) if statuses else "not run",
        ok_samples=summary.ok_samples if summary else 0,
        samples=sum(statuses.values()),
        summary=summary,
    )


def _table(kind: str, lines: list[CaseLine], chosen: list[Column], show_all: bool) -> CaseTable:
    axes = list(dict.fromkeys(name for line in lines for name in line.axes))
    ran = [line for line in lines if line.summary]
    same, differ = _facts(ran, axes)
    table = CaseTable(kind, axes, key_axes(axes, lines), differ, [], lines, same, is_chosen=bool(chosen) or show_all)
    table.metrics = chosen or _metrics(table, kind, show_all)
    table.best = {pair for column in table.metrics for pair in _best(lines, column)}
    if kind == "engine":
        _mark_pareto(table)
    return table


def _facts(lines: list[CaseLine], axes: list[str]) -> tuple[dict[str, Any], list[str]]:
    """What all cases share, and the names of what differs without being an axis."""
    same, differ = {}, []
    for name in _FACTS:
        values = [line.facts[name] for line in lines if line.facts.get(name) is not None]
        if name in axes or not values:
            continue
        if all(value == values[0] for value in values):
            same[name] = values[0]
        else:
            differ.append(name)
    return same, differ


def key_axes(axes: list[str], lines: list[CaseLine]) -> list[str]:
    """Axes, most values first, until no two cases look alike; in the suite's order."""

    def distinct(names: list[str]) -> int:
        return len({tuple(str(line.axes.get(name)) for name in names) for line in lines})

    chosen: list[str] = []
    for name in sorted(axes, key=lambda name: -distinct([name])):
        if distinct([*chosen, name]) > distinct(chosen):
            chosen.append(name)
    return [name for name in axes if name in chosen]


def _metrics(table: CaseTable, kind: str, show_all: bool) -> list[Column]:
    """Headline metrics (or all) that some case has; what is the same in all of them is said once above."""
    names = [*HEADLINES[kind], *(n for n in METRICS if n not in HEADLINES[kind])]
    ran = [line for line in table.lines if line.ok_samples]
    values = {name: [line.value(name) for line in ran] for name in names}
    if show_all:
        return [_named(name) for name in names if any(value is not None for value in values[name])]
    settled = {name for name, column in METRICS.items() if column.type == "int64"} | {"kv_utilisation_peak"}
    found = selected(kind, values, settled)
    table.constants |= found.same
    table.said_once = [_named(name) for name in found.same]
    return [_named(name) for name in found.shown]


def _best(lines: list[CaseLine], column: Column) -> Iterable[tuple[str, str]]:
    """The best cases of a column; a value that most cases share distinguishes none."""
    values = {line.case_id: v for line in lines if (v := line.value(column.name)) is not None}
    if not column.better or len(set(values.values())) < 2:
        return []
    top = max(values.values()) if column.better == "higher" else min(values.values())
    found = [(case_id, column.name) for case_id, value in values.items() if value == top]
    return found if 2 * len(found) <= len(lines) or len(found) == 1 else []


def _mark_pareto(table: CaseTable) -> None:
    points = [[line.value(name) for name, _ in PARETO] for line in table.lines]
    marks = pareto_front(points, [higher for _, higher in PARETO])
    for line, mark in zip(table.lines, marks, strict=True):
        line.is_pareto = mark
    table.has_pareto = any(marks) and len(table.lines) > 1
