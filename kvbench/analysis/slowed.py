"""Samples during which the core or GPU that did the work was not at its own speed, by their rows' warnings.

What decides is what the machine said of itself, never the times. That others were busy on other cores is no reason.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kvbench.store.case_columns import warning_names

SLOWED = frozenset({"core_shared", "cpu_stolen", "descheduled", "page_faults", "swapped", "throttled"})


def is_slowed(row: Mapping[str, Any]) -> bool:
    """Whether a case's row, which has `warnings`, says so."""
    return not SLOWED.isdisjoint(warning_names(row.get("warnings")))


def at_own_speed(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The rows that were not slowed, in order; all of them where every one was: better a slow value than none."""
    return [row for row in rows if not is_slowed(row)] or list(rows)
