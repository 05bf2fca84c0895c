"""A suite cut down to some of its cases: exactly those, from the suite's own text, whatever its axes are called."""

from __future__ import annotations

from typing import Any

import pytest

from kvbench.spec.cases import Case, expand
from kvbench.spec.document import parse
from kvbench.spec.load import from_effective, load_suite, suite_names
from kvbench.spec.matrix import MAX_RULES
from kvbench.spec.narrow import narrowed
from kvbench.spec.toml_write import to_toml


def _cases(content: dict[str, Any]) -> list[Case]:
    """By way of TOML, as another revision would read it."""
    return expand(from_effective(parse(to_toml(content), "suite.toml").data).suite)


def _left(content: dict[str, Any], wanted: list[Case]) -> list[str]:
    return [case.case_id for case in _cases(narrowed(content, [(case.kind, case.axes) for case in wanted]))]


@pytest.mark.parametrize("name", suite_names())
def test_some_cases_of_a_shipped_suite_are_exactly_those(name: str) -> None:
    content = load_suite(name).effective
    cases = [case for case in _cases(content) if case.axes]
    without_axes = [case.case_id for case in _cases(content) if not case.axes]
    for wanted in (cases[:1], cases[-1:], cases[1::3]):
        if wanted:
            assert _left(content, wanted) == [*[case.case_id for case in wanted], *without_axes]


MIXED = {
    "name": "mixed",
    "engine": {"kv_memory": "8MiB"},
    "kernel": {"context": 256},
    "axes": {"engine.block_size": [8, 16], "kernel.block_size": [16, 32]},
    "zip": [{"workload.requests": [4, 8], "workload.input_tokens": [16, {"kind": "uniform", "low": 2, "high": 9}]}],
    "exclude": [{"engine.block_size": 8, "workload.requests": 4}],
}


def test_one_name_in_two_kinds_of_case_and_values_that_are_tables() -> None:
    cases = _cases(MIXED)
    assert len(cases) == 5
    for case in cases:
        assert _left(MIXED, [case]) == [case.case_id]
    assert _left(MIXED, cases[2:4]) == [case.case_id for case in cases[2:4]]


def test_a_case_of_another_suite_leaves_all() -> None:
    assert narrowed(MIXED, [("engine", {"block_size": 64})]) == MIXED


def test_more_cases_than_rules_are_allowed_leave_all() -> None:
    content = {"name": "wide", "kernel": {"context": 256}, "axes": {"kernel.batch": list(range(1, MAX_RULES + 2))}}
    assert narrowed(content, [(case.kind, case.axes) for case in _cases(content)]) == content
