"""Words for places and for what is missing: what tells cases apart, which settings a run lacks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kvbench.analysis.claims.evidence import CaseEvidence, Quantity
from kvbench.units import format_bytes


def labels_of(cases: Sequence[CaseEvidence]) -> list[str]:
    """Each by the fewest axes that tell it from the others."""
    names = list(dict.fromkeys(name for case in cases for name in case.axes))

    def distinct(chosen: Sequence[str]) -> int:
        return len({tuple(str(case.axes.get(name)) for name in chosen) for case in cases})

    telling: list[str] = []
    for name in sorted(names, key=lambda name: -distinct([name])):
        if distinct([*telling, name]) > distinct(telling):
            telling.append(name)
    return [", ".join(_axis(name, case.axes.get(name)) for name in names if name in telling) for case in cases]


def _axis(name: str, value: Any) -> str:
    is_size = name.endswith("memory") and isinstance(value, int)
    return f"{name}={format_bytes(value) if is_size else value}"


def lack_of(cases: Sequence[CaseEvidence], settings: Mapping[str, Any], quantity: Quantity, kind: str) -> str:
    """Why these cases, all there are of the kind with these settings, do not have the quantity; empty where some sample
    has it."""
    if not cases:
        return f"the run has no {kind} case with {words_of(settings)}"
    if all(status == "skipped" for case in cases for status in case.statuses) and any(c.statuses for c in cases):
        return f"cases with {words_of(settings)} cannot run here and were skipped"
    if not any(case.rows for case in cases):
        return f"no sample with {words_of(settings)} ended ok"
    if not any(case.values(quantity) for case in cases):
        return f"no sample with {words_of(settings)} has {name_of(quantity)}"
    return ""


def words_of(settings: Mapping[str, Any]) -> str:
    """`kv_dtype=int8 or fp8_e4m3 block_size=16`."""
    return " ".join(f"{name}={_any_of(value)}" for name, value in settings.items()) or "these settings"


def _any_of(value: Any) -> str:
    return " or ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def name_of(quantity: Quantity) -> str:
    """A metric by its name, a derived quantity by its function's."""
    return quantity if isinstance(quantity, str) else quantity.__name__.strip("_").replace("_", " ")
