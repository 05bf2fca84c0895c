"""One way of naming a case of a run, wherever a command takes `--case`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kvbench.errors import UsageError
from kvbench.tabulate import one_line

if TYPE_CHECKING:
    from kvbench.store.run import Run

Case = dict[str, Any]
_SHOWN = 12


def label_of(case: Case) -> str:
    """The case in words: its axes, or its id where nothing is varied."""
    return one_line(str(case.get("label") or _axes(case) or case["case_id"]))


def choose_case(run: Run, asked: str) -> Case:
    """The one case that `asked` names: its id, its label, the front of its id, some words of its label
    (`block_size=16 kv_dtype=int8`), or a part of its label; the first of these that fits any case decides.

    `UsageError`, with what there is to choose from, for none and for several.
    """
    cases = run.plan["cases"]
    found = _matching(cases, one_line(asked))
    if not found:
        raise UsageError(f"no case {asked!r} in {run.path}", hint=f"there are {listed(cases)}")
    if len(found) > 1:
        raise UsageError(f"{len(found)} cases go by {asked!r}: which one?", hint=f"--case {listed(found)}")
    return found[0]


def listed(cases: Sequence[Case]) -> str:
    """Ids and labels of the first cases, and how many more there are."""
    shown = [f"{case['case_id']} ({label_of(case)})" for case in cases[:_SHOWN]]
    return " · ".join(shown) + (f" · and {len(cases) - _SHOWN} more" if len(cases) > _SHOWN else "")


def _matching(cases: Sequence[Case], asked: str) -> list[Case]:
    if not asked:
        return []
    words = set(asked.split())
    return (
        [case for case in cases if asked in (case["case_id"], label_of(case))]
        or [case for case in cases if str(case["case_id"]).startswith(asked)]
        or [case for case in cases if words <= set(label_of(case).split())]
        or [case for case in cases if asked in label_of(case)]
    )


def _axes(case: Case) -> str:
    return " ".join(f"{name}={value}" for name, value in case.get("axes", {}).items())
