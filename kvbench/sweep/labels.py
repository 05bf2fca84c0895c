"""What to call a case in a line of talk."""

from __future__ import annotations

from collections import Counter
from typing import Any

from kvbench.spec.cases import Case
from kvbench.units import format_bytes

LONG_LABEL = 4
COMMONEST = "the commonest value of every axis"


def labels(cases: list[Case]) -> list[str]:
    """What to call each case in a line of talk: the axes that vary among its kind, or of more than `LONG_LABEL` only
    those whose value is not the commonest of their column (which still tells any two cases apart)."""
    counts: dict[tuple[str, str], Counter[str]] = {}
    for case in cases:
        for name, value in case.axes.items():
            counts.setdefault((case.kind, name), Counter())[repr(value)] += 1
    return [_label(case, counts) for case in cases]


def _label(case: Case, counts: dict[tuple[str, str], Counter[str]]) -> str:
    varied = [name for name in case.axes if len(counts[case.kind, name]) > 1]
    shown = varied or list(case.axes)
    if len(varied) > LONG_LABEL:
        usual = {name: counts[case.kind, name].most_common(1)[0][0] for name in varied}
        shown = [name for name in varied if repr(case.axes[name]) != usual[name]]
    words = [f"{name}={_in_words(name, case.axes[name])}" for name in shown] or ([COMMONEST] if varied else [])
    if case.kind == "kernel":
        return " ".join(["kernel", *words])
    return " ".join(words) or "engine"


def _in_words(name: str, value: Any) -> str:
    return format_bytes(value).replace(" ", "") if name.endswith("memory") and isinstance(value, int) else str(value)
