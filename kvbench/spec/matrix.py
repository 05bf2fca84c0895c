"""Axes, zip groups, `exclude` and `only`: read, checked value by value, and ready to be multiplied out."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from kvbench.spec.fields import Settings
from kvbench.spec.keys import SECTIONS, SECTIONS_OF, Kind, all_keys, normalise, unknown_key
from kvbench.spec.problems import Problem
from kvbench.spec.translate import problems_of
from kvbench.spec.words import shown

MAX_CASES = 100_000
MAX_RULES = 200


@dataclass(frozen=True, slots=True)
class Setting:
    """One value of one key; `text` is the same for every spelling of the value."""

    key: str
    value: Any
    text: str
    cell: Any
    """The value in a table."""
    section: str


@dataclass(frozen=True, slots=True)
class Dimension:
    """An axis, or a zip group: its settings advance together, step by step."""

    kind: Kind
    place: str
    steps: tuple[tuple[Setting, ...], ...]

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(setting.key for setting in self.steps[0])


@dataclass(frozen=True, slots=True)
class Rule:
    """An `exclude` or `only` entry: key → texts that match."""

    kind: Kind
    place: str
    matches: dict[str, frozenset[str]]


@dataclass
class Matrix:
    """What is varied: dimensions in order, rules that leave points out, and what was wrong with either."""

    dimensions: list[Dimension] = field(default_factory=list)
    exclude: list[Rule] = field(default_factory=list)
    only: list[Rule] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)

    def of_kind(self, kind: Kind) -> list[Dimension]:
        return [dimension for dimension in self.dimensions if dimension.kind == kind]

    def count(self, kind: Kind) -> int:
        """Points of the product, before `exclude` and `only`."""
        return math.prod(len(dimension.steps) for dimension in self.of_kind(kind))


def canonical(value: Any) -> str:
    """One text per value, whatever its spelling and the order of its keys."""
    plain = value.model_dump(mode="json", exclude_none=True) if isinstance(value, Settings) else value
    return json.dumps(plain, sort_keys=True)


def table_cell(value: Any) -> Any:
    """A value in a table: a length distribution becomes text, a constant one its number."""
    if not isinstance(value, Settings):
        return canonical(value) if isinstance(value, list) else value
    parts = value.model_dump(mode="json", exclude_none=True)
    kind = parts.pop("kind")
    if kind == "constant" and list(parts) == ["value"]:
        return parts["value"]
    return f"{kind}({', '.join(f'{name}={part}' for name, part in parts.items())})"


def read_matrix(data: Mapping[str, Any]) -> Matrix:
    """`axes`, `zip`, `exclude` and `only` of a suite, flat (dotted key → value); `problems` has all that is wrong."""
    matrix = Matrix()
    for key, values in data.get("axes", {}).items():
        _add_dimension(matrix, {key: values}, f"axes.{key}")
    for number, group in enumerate(data.get("zip", [])):
        _add_dimension(matrix, group, f"zip.{number}")
    _check_overlaps(matrix)
    matrix.exclude = _rules(matrix, data.get("exclude", []), "exclude")
    matrix.only = _rules(matrix, data.get("only", []), "only")
    return matrix


def _add_dimension(matrix: Matrix, group: Mapping[str, Any], place: str) -> None:
    """Add an axis or a zip group, or what is wrong with it."""
    prefix = place if place.startswith("zip.") else "axes"
    before = len(matrix.problems)
    matrix.problems += _structure_problems(group, prefix)
    if len(matrix.problems) > before:
        return
    columns = [list(_settings(matrix, key, values, f"{prefix}.{key}")) for key, values in group.items()]
    kind = all_keys()[next(iter(group))].kind
    if kind and len(matrix.problems) == before:
        matrix.dimensions.append(Dimension(kind, place, tuple(zip(*columns, strict=True))))


def _structure_problems(group: Mapping[str, Any], prefix: str) -> Iterator[Problem]:
    if not group:
        yield Problem(prefix, "an empty group; expected two or more axes that advance together")
    for key, values in group.items():
        if text := _axis_key_problem(key) or _axis_values_problem(values):
            yield Problem(f"{prefix}.{key}", text)
    lists = {key: len(values) for key, values in group.items() if isinstance(values, list)}
    if len(set(lists.values())) > 1:
        counts = ", ".join(f"{key} has {count}" for key, count in lists.items())
        yield Problem(prefix, f"zipped axes must have as many values each: {counts}")
    kinds = {all_keys()[key].kind for key in group if key in all_keys()}
    if len(kinds) > 1:
        yield Problem(prefix, "a zip group belongs to engine cases or to kernel cases, not to both")


def _axis_key_problem(key: str) -> str:
    if key not in all_keys():
        return unknown_key(key)
    if all_keys()[key].kind is None:
        varied = ", ".join(section for sections in SECTIONS_OF.values() for section in sections)
        return f"cannot be varied, it holds for the whole run; an axis is a setting of {varied}"
    return ""


def _axis_values_problem(values: Any) -> str:
    if not isinstance(values, list):
        return f"expected a list of values, got {shown(values)}; write [{shown(values)}] for one value"
    if not values:
        return "an axis with no values; expected one or more"
    if len(values) > MAX_CASES:
        return f"{len(values):,} values; at most {MAX_CASES:,} cases make a suite"
    return ""


def _settings(matrix: Matrix, key: str, values: list[Any], place: str) -> Iterator[Setting]:
    """The values as the key's own field reads them. In a lone axis no value may come twice."""
    first_at: dict[str, int] = {}
    for number, value in enumerate(values):
        setting = _read(matrix, key, value, place, f"{place}.{number}")
        if setting is None:
            continue
        if place.startswith("axes.") and setting.text in first_at:
            first = first_at[setting.text]
            matrix.problems.append(Problem(place, _twice(values, first, number), at=f"{place}.{number}"))
        first_at.setdefault(setting.text, number)
        yield setting


def _twice(values: list[Any], first: int, second: int) -> str:
    return (
        f"value {first + 1} ({shown(values[first])}) and value {second + 1} ({shown(values[second])}) are the same: "
        "keep one"
    )


def _read(matrix: Matrix, key: str, value: Any, place: str, at: str) -> Setting | None:
    try:
        read = normalise(key, value)
    except ValidationError as error:
        section = key.partition(".")[0]
        for problem in problems_of(error, SECTIONS[section], section):
            inner = problem.key.removeprefix(key).lstrip(".")
            matrix.problems.append(Problem(place, f"{inner}: {problem.text}" if inner else problem.text, at=at))
        return None
    return Setting(key, read, canonical(read), table_cell(read), key.partition(".")[0])


def _check_overlaps(matrix: Matrix) -> None:
    """No key may be varied twice, neither itself nor together with the table around it."""
    seen: dict[str, str] = {}
    for dimension in matrix.dimensions:
        for key in dimension.keys:
            clash = next((k for k in seen if k == key or k.startswith(f"{key}.") or key.startswith(f"{k}.")), None)
            if clash:
                text = f"varied twice, here and by {seen[clash]}; keep one"
                at = dimension.place if dimension.place.startswith("axes") else f"{dimension.place}.{key}"
                matrix.problems.append(Problem(at, text))
            seen[key] = dimension.place


def _rules(matrix: Matrix, entries: list[dict[str, Any]], name: str) -> list[Rule]:
    if len(entries) > MAX_RULES:
        text = f"{len(entries):,} entries; at most {MAX_RULES}, for one entry may list several values of a key"
        matrix.problems.append(Problem(name, text))
        return []
    found = (_rule(matrix, entry, f"{name}.{number}") for number, entry in enumerate(entries))
    return [rule for rule in found if rule]


def _rule(matrix: Matrix, entry: dict[str, Any], place: str) -> Rule | None:
    before = len(matrix.problems)
    matrix.problems += (
        Problem(f"{place}.{key}", text) for key, text in ((key, _axis_key_problem(key)) for key in entry) if text
    )
    kinds = {all_keys()[key].kind for key in entry if key in all_keys()}
    if not entry:
        matrix.problems.append(Problem(place, "an empty entry; expected key = value"))
    elif len(kinds - {None}) > 1:
        matrix.problems.append(Problem(place, "no case has engine and kernel settings at once; write two entries"))
    if len(matrix.problems) > before:
        return None
    matches = {key: _matching(matrix, key, wanted, f"{place}.{key}") for key, wanted in entry.items()}
    kind = kinds.pop()
    return Rule(kind, place, matches) if kind and len(matrix.problems) == before else None


def _matching(matrix: Matrix, key: str, wanted: Any, place: str) -> frozenset[str]:
    if isinstance(wanted, list) and not wanted:
        matrix.problems.append(Problem(place, "an empty list; expected a value or a list of values"))
    values = wanted if isinstance(wanted, list) else [wanted]
    settings = (_read(matrix, key, value, place, place) for value in values)
    return frozenset(setting.text for setting in settings if setting)
