"""A run as the checkers see it: cases with their settings, and the numbers of every sample that ended ok."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kvbench.store.setting_columns import setting_row

if TYPE_CHECKING:
    from kvbench.store.run import Run

Row = Mapping[str, Any]
Quantity = str | Callable[[Row], float | None]
"""A metric by name, or what follows from several of one sample."""


@dataclass(frozen=True, slots=True)
class CaseEvidence:
    """One case. `settings` are its axes and every resolved setting by column; `rows` sample → row, ok ones only."""

    case_id: str
    kind: str
    axes: dict[str, Any]
    settings: dict[str, Any]
    rows: dict[int, Row] = field(default_factory=dict)
    statuses: tuple[str, ...] = ()
    model: dict[str, Any] = field(default_factory=dict)
    """Geometry of its model, as the plan has it; empty for kernel cases."""

    def matches(self, kind: str, settings: Mapping[str, Any]) -> bool:
        return self.kind == kind and all(_fits(self.settings.get(name), want) for name, want in settings.items())

    def values(self, quantity: Quantity) -> dict[int, float]:
        """Sample → value, where there is a finite one."""
        found = {number: _value(row, quantity) for number, row in sorted(self.rows.items())}
        return {number: value for number, value in found.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Evidence:
    """All cases of a run. `is_exact`: by the virtual clock nothing varies, and one sample tells all."""

    cases: tuple[CaseEvidence, ...]
    is_exact: bool = False

    def where(self, settings: Mapping[str, Any], kind: str = "engine") -> list[CaseEvidence]:
        """The cases with these settings; a tuple stands for any of its values."""
        return [case for case in self.cases if case.matches(kind, settings)]

    def values_of(self, name: str, kind: str = "engine") -> list[Any]:
        """The values that a setting takes over the cases of a kind, in the run's order."""
        found: list[Any] = []
        for case in self.cases:
            value = case.settings.get(name)
            if case.kind == kind and value is not None and value not in found:
                found.append(value)
        return found


def whole_numbers(cases: Iterable[CaseEvidence], name: str) -> list[int]:
    """The whole numbers among the values of a setting, ascending."""
    values = [case.settings.get(name) for case in cases]
    return sorted({value for value in values if isinstance(value, int) and not isinstance(value, bool)})


def evidence_of(run: Run) -> Evidence:
    """What a run, sealed or not, shows."""
    return collect(run.plan, run.case_rows)


def collect(plan: Mapping[str, Any], rows: Iterable[Row]) -> Evidence:
    """The same from a plan and case rows."""
    by_case: dict[str, list[Row]] = {}
    for row in rows:
        by_case.setdefault(row["case_id"], []).append(row)
    models = found if isinstance(found := plan.get("models"), Mapping) else {}
    cases = tuple(_case(case, by_case.get(case["case_id"], []), models) for case in plan["cases"])
    return Evidence(cases, plan.get("clock") == "virtual")


def _case(case: Mapping[str, Any], rows: list[Row], models: Mapping[str, Any]) -> CaseEvidence:
    kind = str(case.get("kind", "engine"))
    names = ("kernel",) if kind == "kernel" else ("model", "engine", "workload")
    sections = {name: case[name] for name in names if isinstance(case.get(name), Mapping)}
    axes = dict(case.get("axes", {}))
    settings = {name: value for name, value in setting_row(sections).items() if value is not None}
    about = models.get(str(settings.get("model_name", axes.get("model_name"))))
    if isinstance(about, Mapping) and about.get("attention_mode"):
        settings["attention_mode"] = about["attention_mode"]
    return CaseEvidence(
        case_id=case["case_id"],
        kind=kind,
        axes=axes,
        settings={**settings, **axes},
        rows={row["sample"]: row for row in rows if row.get("status") == "ok"},
        statuses=tuple(str(row.get("status")) for row in rows),
        model=dict(about.get("geometry") or {}) if isinstance(about, Mapping) else {},
    )


def _fits(value: Any, want: Any) -> bool:
    return bool(value in want if isinstance(want, tuple) else value == want)


def _value(row: Row, quantity: Quantity) -> float | None:
    found = row.get(quantity) if isinstance(quantity, str) else quantity(row)
    if isinstance(found, bool) or not isinstance(found, int | float) or not math.isfinite(found):
        return None
    return float(found)
