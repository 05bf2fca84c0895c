"""Which sample a timeline is of: asked for by case id or label, or the only one that there is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvbench.errors import DataError, UsageError
from kvbench.tabulate import one_line

if TYPE_CHECKING:
    from kvbench.store.run import Run

_SHOWN = 12


@dataclass(frozen=True, slots=True)
class Picked:
    """One sample of a run: its case in the plan and its row."""

    case: dict[str, Any]
    row: dict[str, Any]

    @property
    def label(self) -> str:
        return label_of(self.case)

    @property
    def is_virtual(self) -> bool:
        return bool(self.row.get("clock") == "virtual")


def label_of(case: dict[str, Any]) -> str:
    return one_line(str(case.get("label") or case["case_id"]))


def pick(run: Run, case: str | None, sample: int | None) -> Picked:
    """The sample that `case` (an id, the front of one, a label or a part of one) and `sample` name.

    Without `case` the run must have one engine case; without `sample` it is the first that ended ok. Raises
    `UsageError`, with what there is to choose from, when nothing or several things are meant.
    """
    chosen = _case(run, [c for c in run.plan["cases"] if c.get("kind", "engine") == "engine"], case)
    rows = [row for row in run.case_rows if row["case_id"] == chosen["case_id"]]
    if not rows:
        raise DataError(f"{run.path} holds no sample of {label_of(chosen)} yet", hint="go on with the run by --resume")
    if sample is None:
        row = min(rows, key=lambda row: (row["status"] != "ok", row["sample"]))
        return Picked(chosen, row)
    found = next((row for row in rows if row["sample"] == sample), None)
    if found is None:
        there = ", ".join(str(row["sample"]) for row in rows)
        hint = f"--sample counts from 0; on record: {there}"
        raise UsageError(f"{label_of(chosen)} has no sample {sample}", hint=hint)
    return Picked(chosen, found)


def _case(run: Run, engine: Sequence[dict[str, Any]], asked: str | None) -> dict[str, Any]:
    if asked is None:
        if len(engine) == 1:
            return engine[0]
        if not engine:
            raise UsageError(f"{run.path} has no engine case", hint="a kernel case has no requests and no steps")
        raise UsageError(f"{run.path} has {len(engine)} engine cases: which one?", hint=f"--case {_listed(engine)}")
    found = _matching(run.plan["cases"], asked)
    if not found:
        raise UsageError(f"{run.path} has no case {asked!r}", hint=f"there are {_listed(engine)}" if engine else None)
    if len(found) > 1:
        raise UsageError(f"{len(found)} cases go by {asked!r}: which one?", hint=f"--case {_listed(found)}")
    if found[0].get("kind", "engine") != "engine":
        raise UsageError(f"{label_of(found[0])} is a kernel case: it has no timeline", hint="choose an engine case")
    return found[0]


def _matching(cases: Sequence[dict[str, Any]], asked: str) -> list[dict[str, Any]]:
    """Those that are named, or else whose id begins so, or else whose label has it."""
    named = [case for case in cases if asked in (case["case_id"], label_of(case))]
    front = [case for case in cases if asked and case["case_id"].startswith(asked)]
    return named or front or [case for case in cases if asked and asked in label_of(case)]


def _listed(cases: Sequence[dict[str, Any]]) -> str:
    shown = [f"{case['case_id']} ({label_of(case)})" for case in cases[:_SHOWN]]
    return " · ".join(shown) + (f" · and {len(cases) - _SHOWN} more" if len(cases) > _SHOWN else "")
