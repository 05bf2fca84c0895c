"""tests/CASES.md and the tests name each other: no case without its test, no test without its line."""

from __future__ import annotations

import ast
import re
from pathlib import Path

HERE = Path(__file__).parent
PAGE = (HERE / "CASES.md").read_text(encoding="utf-8")


def _case_tests() -> dict[str, str]:
    """`file.py::test_e01_…` → `E01`, of every test that carries the id of a case."""
    found = {}
    for path in HERE.rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and (case := re.match(r"test_([ekm]\d\d)_", node.name)):
                found[f"{path.relative_to(HERE).as_posix()}::{node.name}"] = case.group(1).upper()
    return found


def _lines() -> list[tuple[str, list[str]]]:
    return [
        (line.split("|")[1].strip(), re.findall(r"`([\w/]+\.py::\w+)`", line))
        for line in PAGE.splitlines()
        if re.match(r"\| [EKM]\d\d \|", line)
    ]


def test_every_case_test_is_on_the_page_under_its_id_and_every_named_test_exists() -> None:
    assert {test: case for case, tests in _lines() for test in tests} == _case_tests()


def test_every_case_has_one_line() -> None:
    cases = [case for case, _ in _lines()]
    assert sorted(set(cases)) == sorted(cases)


def test_every_line_names_a_test() -> None:
    assert [case for case, tests in _lines() if not tests] == []
