"""A run as figures need it: cases, factors, the values of every sample, cases worth a look of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from kvbench.analysis.summary import is_plausible
from kvbench.report.build import PRIMARY, CaseLine, CaseTable, Report, build_report
from kvbench.report.cells import metric_cell, metric_label
from kvbench.report.html.factors import Factor, factors
from kvbench.report.html.figure import Range
from kvbench.store.case_columns import METRICS
from kvbench.store.columns import Column
from kvbench.store.run import Run

_SHOWN_CASES = 4


@dataclass(frozen=True, slots=True)
class Kind:
    """The cases of one kind with what was varied among them."""

    table: CaseTable
    factors: Sequence[Factor]

    @property
    def ran(self) -> list[CaseLine]:
        """Cases with a sample that ended ok."""
        return [line for line in self.table.lines if line.ok_samples]

    def label(self, line: CaseLine) -> str:
        """The case in words, as in the notes of every table."""
        return line.label(self.table.key_axes)

    @property
    def primary(self) -> Column:
        return METRICS[PRIMARY[self.table.kind]]

    def by_primary(self) -> list[CaseLine]:
        """Cases that have the main metric, best first."""
        known = [(value, line) for line in self.ran if (value := line.value(self.primary.name)) is not None]
        sign = -1 if self.primary.better == "higher" else 1
        return [line for _, line in sorted(known, key=lambda pair: sign * pair[0])]


class Contents:
    """Everything that the figures of one run are made of."""

    def __init__(self, run: Run, metrics: Sequence[str] = (), *, show_all: bool = False) -> None:
        self.run = run
        self.report: Report = build_report(run, metrics, show_all=show_all)
        suite = run.plan["suite"]
        self.kinds = {table.kind: Kind(table, factors(table, suite)) for table in self.report.tables}
        self._samples: dict[tuple[str, str], dict[int, float]] = {}

    @property
    def engine(self) -> Kind | None:
        return self.kinds.get("engine")

    @property
    def kernel(self) -> Kind | None:
        return self.kinds.get("kernel")

    @property
    def is_virtual(self) -> bool:
        return self.report.clock == "virtual"

    @cached_property
    def _rows(self) -> dict[str, list[Mapping[str, Any]]]:
        found: dict[str, list[Mapping[str, Any]]] = {}
        for row in self.run.case_rows:
            if row.get("status") == "ok":
                found.setdefault(row["case_id"], []).append(row)
        return found

    def samples(self, case_id: str, metric: str) -> dict[int, float]:
        """Sample → value of the samples that ended ok and have it."""
        key = (case_id, metric)
        if key not in self._samples:
            values = ((row["sample"], row.get(metric)) for row in self._rows.get(case_id, ()))
            self._samples[key] = {n: float(v) for n, v in values if v is not None and is_plausible(v)}
        return self._samples[key]

    def first_sample(self, case_id: str) -> int | None:
        """The first sample that ended ok."""
        return min((row["sample"] for row in self._rows.get(case_id, ())), default=None)

    @property
    def shown_cases(self) -> list[CaseLine]:
        """Few engine cases whose requests and steps are drawn: the highest throughput, the rest of the front by
        throughput, and the lowest throughput."""
        if self.engine is None:
            return []
        ranked = self.engine.by_primary()
        if len(ranked) <= _SHOWN_CASES:
            return ranked
        front = [line for line in ranked[1:-1] if line.is_pareto][: _SHOWN_CASES - 2]
        return [ranked[0], *front, ranked[-1]]


def spread_of(line: CaseLine, metric: str) -> Range | None:
    """Median and range over the samples of a case."""
    spread = line.summary.metrics.get(metric) if line.summary else None
    return Range(spread.median, spread.low, spread.high) if spread else None


def cell(line: CaseLine, metric: str) -> str:
    """A metric of a case as in the tables."""
    return metric_cell(line.value(metric), METRICS[metric])


def range_cell(line: CaseLine, metric: str) -> str:
    """The same with its range over samples, where there are several."""
    spread = line.summary.metrics.get(metric) if line.summary else None
    text = cell(line, metric)
    if spread is None or spread.count < 2:
        return text
    low, high = (metric_cell(end, METRICS[metric]) for end in (spread.low, spread.high))
    return f"{text} ({low} to {high})" if low != high else text


def words(line: CaseLine, label: str, metrics: Sequence[str]) -> list[tuple[str, str]]:
    """What a reader sees who points at a case."""
    return [("case", label), *((metric_label(METRICS[name]), range_cell(line, name)) for name in metrics)]
