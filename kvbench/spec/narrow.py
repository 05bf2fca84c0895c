"""A suite cut down to some of its cases, by `only` and `exclude` as anybody would write them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kvbench.spec.keys import Kind, column
from kvbench.spec.matrix import MAX_RULES, Dimension, read_matrix


def narrowed(suite: Mapping[str, Any], cases: Sequence[tuple[Kind, Mapping[str, Any]]]) -> dict[str, Any]:
    """The suite (plain data with flat axes) with these cases alone, each given by its kind and its axes (column → value
    in a table). More cases than rules are allowed, or one that is no point of the suite: the suite as it is. A kind
    without axes has one case, which stays."""
    matrix = read_matrix({"axes": suite.get("axes", {}), "zip": suite.get("zip", [])})
    only: list[dict[str, Any]] = []
    exclude = list(suite.get("exclude", []))
    for kind in dict.fromkeys(dimension.kind for dimension in matrix.dimensions):
        dimensions = matrix.of_kind(kind)
        wanted = [axes for of_kind, axes in cases if of_kind == kind]
        if not wanted:
            exclude.append(_every_value(suite, dimensions[0]))
        for axes in wanted:
            rule = _rule(suite, dimensions, axes)
            if rule is None:
                return dict(suite)
            if rule not in only:
                only.append(rule)
    if max(len(only), len(exclude)) > MAX_RULES:
        return dict(suite)
    rules = {"only": only, "exclude": exclude}
    return {**{key: value for key, value in suite.items() if key not in rules}, **{k: v for k, v in rules.items() if v}}


def _rule(suite: Mapping[str, Any], dimensions: Sequence[Dimension], axes: Mapping[str, Any]) -> dict[str, Any] | None:
    """Dotted key → the value as the suite spells it; None where the suite has no such point."""
    rule: dict[str, Any] = {}
    for dimension in dimensions:
        at = next(
            (n for n, step in enumerate(dimension.steps) if all(axes.get(column(s.key)) == s.cell for s in step)), None
        )
        if at is None:
            return None
        rule |= {key: [values[at]] for key, values in _spelled(suite, dimension).items()}
    return rule


def _every_value(suite: Mapping[str, Any], dimension: Dimension) -> dict[str, Any]:
    key, values = next(iter(_spelled(suite, dimension).items()))
    return {key: list(values)}


def _spelled(suite: Mapping[str, Any], dimension: Dimension) -> dict[str, list[Any]]:
    """The values of an axis or of a zip group, key by key, as they stand in the suite."""
    kind, _, name = dimension.place.partition(".")
    group = {name: suite["axes"][name]} if kind == "axes" else suite["zip"][int(name)]
    return {key: group[key] for key in dimension.keys}
