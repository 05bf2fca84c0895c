"""What to call a case in a line of talk."""

from __future__ import annotations

from collections import Counter
from typing import Any

from kvbench.spec.cases import Case
from kvbench.units import format_bytes

LONG_LABEL = 4


def labels(cases: list[Case]) -> list[str]:
    """What to call each case in a line of talk: its axes, or of more than `LONG_LABEL` only those whose value is not
    the commonest of their column (which still tells any two cases apart)."""
    usual: dict[tuple[str, str], Any] = {}
    for kind in ("engine", "kernel"):
        same = [case for case in cases if case.kind == kind]
        for name in same[0].axes if same else ():
            usual[kind, name] = Counter(repr(case.axes[name]) for case in same).most_common(1)[0][0]
    return [_label(case, usual) for case in cases]


def _label(case: Case, usual: dict[tuple[str, str], Any]) -> str:
    is_long = len(case.axes) > LONG_LABEL
    shown = [
        f"{name}={_in_words(name, value)}"
        for name, value in case.axes.items()
        if not is_long or repr(value) != usual[case.kind, name]
    ]
    if case.kind == "kernel":
        return " ".join(["kernel", *shown])
    return " ".join(shown) or ("everything as usual" if is_long else "engine")


def _in_words(name: str, value: Any) -> str:
    return format_bytes(value).replace(" ", "") if name.endswith("memory") and isinstance(value, int) else str(value)
