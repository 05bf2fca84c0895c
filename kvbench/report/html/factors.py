"""What a run varied, as independent factors: each axis, and each zip group as one, because its axes move together."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvbench.report.build import CaseLine, CaseTable, key_axes
from kvbench.report.cells import setting_cell


@dataclass(frozen=True, slots=True)
class Factor:
    """One thing varied. `levels` are its values in words, in the suite's order, each different from the others."""

    names: tuple[str, ...]
    levels: tuple[str, ...]
    level_of: Mapping[str, int]
    """case_id → place in `levels`"""
    numbers: tuple[float, ...] | None = None
    """The levels as numbers, where they are numbers"""

    @property
    def label(self) -> str:
        return " + ".join(self.names)


def factors(table: CaseTable, suite: Mapping[str, Any]) -> list[Factor]:
    """The factors of the table's cases that have at least two levels."""
    found = [_factor(names, table.lines) for names in _groups(table, suite)]
    return [factor for factor in found if len(factor.levels) > 1]


def other_settings(case_id: str, all_factors: Sequence[Factor], left_out: Sequence[Factor]) -> tuple[int, ...]:
    """The levels of a case in all factors but those left out: cases with the same ones differ in these only."""
    return tuple(factor.level_of[case_id] for factor in all_factors if factor not in left_out)


def series(
    lines: Iterable[CaseLine], all_factors: Sequence[Factor], left_out: Sequence[Factor]
) -> dict[str, list[CaseLine]]:
    """The cases by their levels, in words, of all factors but those left out."""
    kept = [factor for factor in all_factors if factor not in left_out]
    found: dict[str, list[CaseLine]] = {}
    for line in lines:
        name = ", ".join(f"{factor.label} {factor.levels[factor.level_of[line.case_id]]}" for factor in kept)
        found.setdefault(name or "all cases", []).append(line)
    return found


def _groups(table: CaseTable, suite: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """Axis columns that move together: as the suite declares them; an axis that it does not name stands alone."""
    from kvbench.spec.keys import column

    effective = suite.get("effective")
    declared = effective if isinstance(effective, Mapping) else {}
    axes, zips = declared.get("axes"), declared.get("zip")
    keys = [[key] for key in axes] if isinstance(axes, Mapping) else []
    keys += [list(group) for group in zips if isinstance(group, Mapping)] if isinstance(zips, list) else []
    seen: set[str] = set()
    for group in keys:
        mine = [key for key in group if key.startswith("kernel.") == (table.kind == "kernel")]
        columns = [name for name in dict.fromkeys(map(column, mine)) if name in table.axes and name not in seen]
        seen.update(columns)
        if columns:
            yield tuple(columns)
    yield from ((name,) for name in table.axes if name not in seen)


def _factor(names: tuple[str, ...], lines: Sequence[CaseLine]) -> Factor:
    places: dict[str, int] = {}
    level_of = {line.case_id: places.setdefault(_identity(line, names), len(places)) for line in lines}
    first: dict[int, CaseLine] = {}
    for line in lines:
        first.setdefault(level_of[line.case_id], line)
    known = [first[place] for place in range(len(places))]
    shown = key_axes(list(names), known) or list(names[:1])
    return Factor(tuple(shown), _distinct([_words(line, shown) for line in known]), level_of, _numbers(known, shown))


def _identity(line: CaseLine, names: Sequence[str]) -> str:
    return json.dumps([line.axes.get(name) for name in names], sort_keys=True, default=str)


def _words(line: CaseLine, names: Sequence[str]) -> str:
    return " · ".join(setting_cell(name, line.axes.get(name)) for name in names)


def _distinct(texts: Sequence[str]) -> tuple[str, ...]:
    """Long values are shortened and may then look alike: those get a number."""
    return tuple(text if texts.count(text) == 1 else f"{text} ({n + 1})" for n, text in enumerate(texts))


def _numbers(lines: Sequence[CaseLine], names: Sequence[str]) -> tuple[float, ...] | None:
    values = [line.axes.get(names[0]) for line in lines]
    if len(names) > 1 or not all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        return None
    return tuple(float(value) for value in values if value is not None)
