"""The one writer of small tables, against other readers of the same formats: csv, json, rich and a Markdown parser."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from collections.abc import Iterator

import click
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rich.cells import cell_len

from kvbench.cli.main import COMMANDS, cli
from kvbench.cli.output import emit_records, format_option
from kvbench.console import plain
from kvbench.tabulate import (
    FORMATS,
    MISSING,
    aligned,
    as_json,
    comma_separated,
    escape_markdown,
    markdown,
    number_columns,
    one_line,
    value_cell,
)

EVIL = "[red]x[/red] <script>alert(1)</script> \x1b[31m\x9b2J | `a` **b** ~~c~~ $d$ \u202e\r\n# e"
MARKUP = st.text(alphabet="ab1 _*`~[]()<>&|\\#-+=.!$:\n\t\x1b\x9b\u202e漢é", max_size=40)


@given(MARKUP | st.text())
@example("1. a")
@example("23)")
@example("&lt;b&gt; &copy; &#124;")
@example("# a")
@example("- a")
@example("---")
@example("~~a~~ __b__ _c_ *d* `e` [f](g) ![h](i) <j> <https://k.l> \\\\")
@example(EVIL)
def test_m68_a_markdown_parser_finds_nothing_but_text(text: str) -> None:
    """Text from outside is one paragraph of plain text to a parser that knows tables and strikethrough."""
    parser = pytest.importorskip("markdown_it").MarkdownIt("commonmark").enable(["table", "strikethrough"])
    tokens = parser.parse(escape_markdown(text))
    if not one_line(text):
        assert tokens == []
        return
    assert [token.type for token in tokens] == ["paragraph_open", "inline", "paragraph_close"]
    assert {child.type for child in tokens[1].children} == {"text"}
    assert "".join(child.content for child in tokens[1].children) == one_line(text)


@given(st.lists(st.tuples(MARKUP, MARKUP), max_size=4))
def test_m68_a_markdown_parser_reads_the_cells_of_a_table_back(rows: list[tuple[str, str]]) -> None:
    """Pipes, newlines, backslashes and tags in cells neither end a cell nor a row."""
    parser = pytest.importorskip("markdown_it").MarkdownIt("commonmark").enable(["table", "strikethrough"])
    tokens = parser.parse(markdown(["a", "b"], rows, right=frozenset({1})))
    cells = ["".join(c.content for c in token.children) for token in tokens if token.type == "inline"]
    assert cells == ["a", "b", *(one_line(cell) for row in rows for cell in row)]
    styles = [token.attrs.get("style") for token in tokens if token.type == "th_open"]
    assert styles == [None, "text-align:right"]


@given(st.text())
def test_one_line_is_printable_and_one_line(text: str) -> None:
    assert one_line(text).isprintable()
    assert one_line(one_line(text)) == one_line(text)


@given(st.lists(st.lists(st.text(), min_size=2, max_size=2)))
def test_csv_reads_back_with_control_characters_spelled(rows: list[list[str]]) -> None:
    text = comma_separated(["a\x1b", "b"], rows)
    assert "\x1b" not in text
    assert list(csv.reader(io.StringIO(text))) == [["a\\x1b", "b"], *([plain(c) for c in row] for row in rows)]


def test_csv_keeps_numbers_and_spells_the_rest_as_json_does() -> None:
    text = comma_separated(["a", "b", "c", "d", "e", "f"], [[None, True, 0.1, 10**20, [1, "x"], {"k": None}]])
    assert next(csv.DictReader(io.StringIO(text))) == {
        "a": "", "b": "true", "c": "0.1", "d": "100000000000000000000", "e": '[1, "x"]', "f": '{"k": null}',
    }  # fmt: skip


LEAVES = st.none() | st.booleans() | st.integers() | st.text()
DOCUMENTS = st.recursive(LEAVES, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner))


@given(DOCUMENTS)
def test_json_holds_the_value_exactly_and_nothing_a_terminal_obeys(value: object) -> None:
    text = as_json(value)
    assert json.loads(text) == value
    assert text.replace("\n", "").isprintable()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), [-float("inf")]])
def test_json_refuses_what_is_not_json(value: object) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        as_json(value)


WORDS = st.text(alphabet="ab 漢字\n\x1be\u0301", max_size=30)


@given(st.lists(st.tuples(WORDS, WORDS, st.integers().map(str)), min_size=1, max_size=5))
def test_columns_stand_under_each_other_in_terminal_cells(rows: list[tuple[str, str, str]]) -> None:
    """As rich measures them, wide and combining characters included; numbers end under each other."""
    lines = aligned(["first", "second", "n"], rows, right=frozenset({2})).splitlines()
    assert len(lines) == len(rows) + 2
    assert len({cell_len(line) for line in lines}) == 1
    ends = [cell_len(part) for part in lines[1].split("  ")]
    for line, row in zip(lines[2:], rows, strict=True):
        shown = [one_line(cell) for cell in row]
        left = [cell + " " * (size - cell_len(cell)) for cell, size in zip(shown[:2], ends, strict=False)]
        assert line == "  ".join([*left, shown[2].rjust(ends[2])])


@given(st.lists(st.tuples(st.text(max_size=200), st.text(max_size=200))), st.integers(30, 100))
def test_folded_lines_fit_and_lose_no_character(rows: list[tuple[str, str]], width: int) -> None:
    text = aligned(["one", "two"], rows, width=width)
    assert max(cell_len(line) for line in text.splitlines()) <= width
    wanted = "".join(cell for row in rows for cell in map(one_line, row)).replace(" ", "")
    body = "".join(text.splitlines()[2:]).replace(" ", "")
    assert sorted(body) == sorted(wanted)


def test_numbers_are_never_folded() -> None:
    text = aligned(["n", "text"], [["9" * 40, "word " * 20]], right=frozenset({0}), width=60)
    assert "9" * 40 in text


def test_columns_of_numbers_are_known_by_their_values() -> None:
    assert number_columns([[1, "a", None, True, None], [2.5, "2", 3, False, None]]) == {0, 2}
    assert number_columns([]) == frozenset()


@given(st.text() | st.lists(st.text()), st.integers(8, 60))
def test_a_value_of_any_length_is_one_short_line(value: object, limit: int) -> None:
    shown = value_cell(value, limit)
    assert len(shown) <= limit
    assert shown.isprintable()


def test_values_are_spelled_for_people() -> None:
    values = (None, "", True, False, 0, [1, "é"], {"a": None})
    assert [value_cell(value) for value in values] == [MISSING, MISSING, "yes", "no", "0", '[1, "é"]', '{"a": null}']
    assert value_cell("a" * 30 + "b" * 30, limit=11) == "aaaaa…bbbbb"


@pytest.mark.parametrize("form", FORMATS)
def test_m68_hostile_text_is_shown_as_text_in_every_format(capsys: pytest.CaptureFixture[str], form: str) -> None:
    """Rich markup, HTML, pipes, terminal escapes and line ends as a value, and as the name of a column."""
    emit_records(form, ["name", EVIL], [{"name": EVIL, EVIL: 1}, {"name": "plain", EVIL: None}])
    out = capsys.readouterr().out
    assert out.replace("\n", "").isprintable()
    assert "alert(1)" in out
    assert ("[red]x[/red]" in out) == (form != "md")
    assert ("<script>" in out) == (form != "md")
    if form == "json":
        assert json.loads(out)[0] == {"name": EVIL, EVIL: 1}
    else:
        assert len(list(csv.reader(io.StringIO(out)))) == {"csv": 3, "table": 4, "md": 4}[form]


def _commands(group: click.Group, ctx: click.Context) -> Iterator[click.Command]:
    for name in group.list_commands(ctx):
        command = group.get_command(ctx, name)
        assert command is not None
        yield from _commands(command, ctx) if isinstance(command, click.Group) else [command]


def test_every_command_spells_format_alike() -> None:
    def reads(command: click.Command) -> list[tuple[object, ...]]:
        found = [p for p in command.params if "--format" in p.opts]
        return [(p.opts, p.name, p.type.choices, p.default, p.help) for p in found]  # type: ignore[attr-defined]

    @click.command()
    @format_option
    def wanted() -> None: ...

    spellings = [reads(command) for command in _commands(cli, click.Context(cli))]
    assert len(spellings) >= len(COMMANDS)
    assert [spelling for spelling in spellings if spelling not in ([], reads(wanted))] == []


def test_tabulate_imports_nothing_heavy() -> None:
    code = (
        "import sys, kvbench.tabulate\n"
        "print(sorted({'rich', 'click', 'numpy', 'torch', 'pandas', 'pydantic'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
