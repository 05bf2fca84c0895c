"""`kvbench suites list|show|schema` from the command line: data on stdout, words on stderr, the right exit codes."""

from __future__ import annotations

import csv
import io
import json
import tomllib
from pathlib import Path

import pytest

from kvbench.cli.main import run
from kvbench.spec.cases import expand
from kvbench.spec.load import load_suite, suite_names


def said(capsys: pytest.CaptureFixture[str], *args: str, code: int = 0) -> tuple[str, str]:
    assert run(["suites", *args]) == code
    out = capsys.readouterr()
    return out.out, out.err


def test_list_has_every_suite_with_its_number_of_cases(capsys: pytest.CaptureFixture[str]) -> None:
    rows = json.loads(said(capsys, "list", "--format", "json")[0])
    assert [row["name"] for row in rows] == suite_names()
    assert {row["name"]: row["cases"] for row in rows} == {n: len(expand(load_suite(n).suite)) for n in suite_names()}


@pytest.mark.parametrize("form", ["table", "json", "csv", "md"])
@pytest.mark.parametrize("command", [["list"], ["show", "smoke"]])
def test_every_format_prints_data_and_nothing_else(
    capsys: pytest.CaptureFixture[str], command: list[str], form: str
) -> None:
    out, err = said(capsys, *command, "--format", form)
    assert ("smoke" if command == ["list"] else "sha256") in out
    assert err == ""


def test_show_prints_toml_that_loads_as_the_same_cases(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out, _ = said(capsys, "show", "block-size")
    table = out.partition("\n# 14 cases\n")[2]
    file = tmp_path / "saved.toml"
    file.write_text(out, encoding="utf-8")
    tomllib.loads(out)
    cases = expand(load_suite("block-size").suite)
    assert [c.case_id for c in expand(load_suite(file).suite)] == [c.case_id for c in cases]
    assert all(case.case_id in table for case in cases)


def test_show_as_csv_has_a_row_per_case_and_a_column_per_axis(capsys: pytest.CaptureFixture[str]) -> None:
    rows = list(csv.DictReader(io.StringIO(said(capsys, "show", "block-size", "--format", "csv")[0])))
    cases = expand(load_suite("block-size").suite)
    assert [(r["case_id"], r["kind"], r["block_size"]) for r in rows] == [
        (c.case_id, c.kind, str(c.axes["block_size"])) for c in cases
    ]


def test_schema_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert json.loads(said(capsys, "schema")[0])["title"] == "kvbench suite"


@pytest.mark.parametrize(
    ("args", "wanted"),
    [
        (["show", "smok"], 'did you mean "smoke"?'),
        (["show", "no/such.toml"], "no such file"),
        (["show", "."], "is a directory"),
        (["show"], "Missing argument"),
        (["show", "smoke", "--format", "xml"], "Invalid value"),
        (["sho"], "sho"),
    ],
)
def test_bad_input_is_one_error_with_a_hint_and_exit_2(
    capsys: pytest.CaptureFixture[str], args: list[str], wanted: str
) -> None:
    out, err = said(capsys, *args, code=2)
    assert out == ""
    assert wanted in err
    assert "error: " in err
    assert "hint: " in err
    assert "Traceback" not in err


def test_m68_markup_and_escapes_of_a_suite_are_shown_as_text(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """M68: a suite name, error text or trace field with markup, HTML or terminal escapes."""
    file = tmp_path / "s.toml"
    file.write_text('name = "t"\ntitle = "[red]<b>\\u001b[31m"\n[axes]\nmodel.name = ["<b>|`\\u001b[31m"]\n')
    for form in ("table", "md"):
        out, _ = said(capsys, "show", str(file), "--format", form)
        assert "\x1b" not in out
    assert "&lt;b&gt;" in said(capsys, "show", str(file), "--format", "md")[0]
    file.write_text('name = "t"\n"\\u001b[31m" = 1\n[engine]\nkv_dtype = "[bold]\\u001b[0m"\n')
    _, err = said(capsys, "show", str(file), code=2)
    assert "\x1b" not in err
    assert "[bold]" in err
