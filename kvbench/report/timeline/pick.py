"""Which sample a timeline is of: asked for by case id or label, or the only one that there is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvbench.errors import DataError, UsageError
from kvbench.report.choose import Case, choose_case, label_of, listed

if TYPE_CHECKING:
    from kvbench.store.run import Run


@dataclass(frozen=True, slots=True)
class Picked:
    """One sample of a run: its case in the plan and its row."""

    case: Case
    row: dict[str, Any]

    @property
    def label(self) -> str:
        return label_of(self.case)

    @property
    def is_virtual(self) -> bool:
        return bool(self.row.get("clock") == "virtual")


def pick(run: Run, case: str | None, sample: int | None) -> Picked:
    """The sample that `case` (see `choose_case`) and `sample` name.

    Without `case` the run must have one engine case; without `sample` it is the first that ended ok. Raises
    `UsageError`, with what there is to choose from, when nothing or several things are meant.
    """
    chosen = _case(run, case)
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


def _case(run: Run, asked: str | None) -> Case:
    """The engine case that is asked for, or the only one."""
    if asked is not None:
        found = choose_case(run, asked)
        if found.get("kind", "engine") != "engine":
            raise UsageError(f"{label_of(found)} is a kernel case: it has no timeline", hint="choose an engine case")
        return found
    engine = [case for case in run.plan["cases"] if case.get("kind", "engine") == "engine"]
    if not engine:
        raise UsageError(f"{run.path} has no engine case", hint="a kernel case has no requests and no steps")
    if len(engine) > 1:
        raise UsageError(f"{run.path} has {len(engine)} engine cases: which one?", hint=f"--case {listed(engine)}")
    only: Case = engine[0]
    return only
