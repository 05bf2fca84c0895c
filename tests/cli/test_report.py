from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from kvbench.cli.main import run
from tests.store.samples import plan, run_folder


@pytest.mark.parametrize("format", ["table", "md", "csv", "json"])
def test_report_writes_the_cases_to_stdout(tmp_path: Path, capsys: pytest.CaptureFixture[str], format: str) -> None:
    assert run(["report", str(run_folder(tmp_path)), "--format", format]) == 0
    out, err = capsys.readouterr()
    assert out.count("ok") >= 2
    assert err == ""


def test_report_leaves_out_a_damaged_sample_and_says_so_on_stderr(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = run_folder(tmp_path)
    next((path / "parts").glob("*/steps.parquet")).write_bytes(b"PAR1")
    assert run(["report", str(path), "--format", "csv"]) == 0
    out, err = capsys.readouterr()
    assert "warning: left out" in err
    assert [line["samples"] for line in csv.DictReader(io.StringIO(out))] == ["1", "2"]


@pytest.mark.parametrize(
    ("change", "code", "word"),
    [
        ("remove plan.json", 2, "not a run folder"),
        ("break plan.json", 5, "plan.json"),
        ("break cases.parquet", 5, "cases.parquet"),
        ("remove cases.parquet", 5, "cases.parquet"),
        ("newer manifest.json", 2, "newer kvbench"),
    ],
)
def test_a_bad_run_ends_in_one_error_with_a_hint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: str, code: int, word: str
) -> None:
    path = run_folder(tmp_path, is_sealed=True)
    what, name = change.split()
    if what == "remove":
        (path / name).unlink()
    elif what == "break":
        (path / name).write_bytes((path / name).read_bytes()[:50])
    else:
        (path / name).write_text(json.dumps({**json.loads((path / name).read_text()), "schema_version": 99}))
    assert run(["report", str(path)]) == code
    err = capsys.readouterr().err
    assert word in err.replace("\n", " ")
    assert "hint:" in err
    assert "Traceback" not in err


def test_manifest_show_and_diff(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    left = run_folder(tmp_path / "a", is_sealed=True)
    right = run_folder(tmp_path / "b", repetitions=1, environment={"controlled": {"python": "3.12"}})
    assert run(["manifest", "show", str(left), "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads((left / "manifest.json").read_text())
    assert run(["manifest", "diff", str(left / "manifest.json"), str(right), "--format", "csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [(r["class"], r["field"]) for r in rows] == [("controlled", "repetitions"), ("controlled", "system.python")]
    for format in ("table", "md", "csv"):
        assert run(["manifest", "show", str(right), "--format", format]) == 0
        assert plan()["suite"]["digest"] in capsys.readouterr().out


def test_manifest_diff_of_equal_runs_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    left, right = run_folder(tmp_path / "a"), run_folder(tmp_path / "b")
    assert run(["manifest", "diff", str(left), str(right)]) == 0
    out, err = capsys.readouterr()
    assert (out, "no controlled field differs" in err) == ("", True)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema_version": 1, "controlled": 3}'])
def test_what_is_no_manifest_is_bad_data(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str) -> None:
    (tmp_path / "manifest.json").write_text(text)
    assert run(["manifest", "show", str(tmp_path / "manifest.json")]) == 5
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("number", ["NaN", "-Infinity", "1e999"])
def test_a_number_that_json_cannot_hold_is_bad_data(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], number: str
) -> None:
    path = run_folder(tmp_path, is_sealed=True) / "manifest.json"
    path.write_text(path.read_text().replace("{", f'{{"load": {number},', 1))
    for form in ("table", "json"):
        assert run(["manifest", "show", str(path), "--format", form]) == 5
    assert "not a finite number" in capsys.readouterr().err
