"""The locator against the standard parser: the same keys, each on the line where its text is."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbench.paths import suites_dir
from kvbench.spec.toml_lines import key_lines
from kvbench.spec.toml_write import to_toml

HARD = '''# c
a = 1
"x.y" = [1,
  2, [3,
  { q = "]}," , r.s = 'z' }], ]
[axes]
engine.block_size = [ 1, 2 ]  # [
"engine.kv" = """
a ""\\"
"""
[[zip]]
a = """x"""""
[[zip]]
b = [[]]
[zip.c]
d = {}
e = []
[ "sp ace" . 'q' ]
t = 1979-05-27 07:32:00
u = \'\'\'
# no comment ] } =
\'\'\'
'''


def paths_of(node: Any, prefix: tuple[str, ...] = ()) -> set[str]:
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    found = set()
    for key, value in items:
        path = (*prefix, str(key))
        found |= {".".join(path)} | paths_of(value, path)
    return found


def test_every_key_of_a_hard_text_is_found_and_nothing_else() -> None:
    assert set(key_lines(HARD)) == paths_of(tomllib.loads(HARD))


def test_lines_of_a_hard_text() -> None:
    lines = key_lines(HARD)
    wanted = {"a": 2, "x.y": 3, "x.y.1": 4, "x.y.2.1.r.s": 5, "axes": 6, "axes.engine.block_size": 7}
    wanted |= {"axes.engine.kv": 8, "zip.0": 11, "zip.1.b": 14, "zip.1.c.e": 17, "sp ace.q.t": 19, "sp ace.q.u": 20}
    assert {key: lines[key] for key in wanted} == wanted


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_line_endings_do_not_shift_lines(end: str) -> None:
    assert key_lines(HARD.replace("\n", end)) == key_lines(HARD)


@pytest.mark.parametrize("path", sorted(suites_dir().glob("*.toml")), ids=lambda path: path.stem)
def test_every_key_of_a_shipped_suite_stands_on_its_line(path: Any) -> None:
    text = path.read_text(encoding="utf-8")
    lines = key_lines(text)
    assert set(lines) == paths_of(tomllib.loads(text))
    for key, line in lines.items():
        last = key.rpartition(".")[2]
        assert last.isdecimal() or last in text.splitlines()[line - 1]


values = st.recursive(
    st.integers() | st.booleans() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=12,
)


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.text(max_size=6), values, max_size=5))
def test_written_toml_reads_back_and_is_found_whole(data: dict[str, Any]) -> None:
    text = to_toml(data)
    assert tomllib.loads(text) == data
    assert set(key_lines(text)) == paths_of(data)
