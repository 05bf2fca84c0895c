from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path

import pytest

from kvbench.cli.main import run
from kvbench.store.run_folder import RunFolder
from tests.report.test_tables import EVIL
from tests.store.samples import case_id, plan, run_folder, sample

FORMATS = ("table", "md", "csv", "json")


@pytest.mark.parametrize("form", FORMATS)
def test_ls_lists_every_run_in_every_format(tmp_path: Path, capsys: pytest.CaptureFixture[str], form: str) -> None:
    paths = [run_folder(tmp_path, is_sealed=n == 0) for n in range(2)]
    (tmp_path / "small-20260101T000000Z-abcdef").mkdir()
    assert run(["ls", str(tmp_path), "--format", form]) == 0
    out = capsys.readouterr().out
    assert all(path.name in out for path in paths)
    assert "damaged" in out
    if form == "csv":
        rows = list(csv.DictReader(io.StringIO(out)))
        assert [(row["ok_samples"], row["planned_samples"]) for row in rows if row["state"] == "finished"] == [
            ("4", "4")
        ] * 2
    if form == "json":
        assert {row["state"] for row in json.loads(out)} == {"finished", "damaged"}


def test_ls_of_nothing_says_so_and_of_no_folder_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["ls", str(tmp_path)]) == 0
    out, err = capsys.readouterr()
    assert (out, "no runs" in err) == ("", True)
    assert run(["ls", str(tmp_path), "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == []
    one = run_folder(tmp_path)
    assert run(["ls", str(one)]) == 0
    assert f"kvbench show {one}" in capsys.readouterr().err.replace("\n", "")
    assert run(["ls", str(tmp_path / "gone")]) == 2
    assert "hint:" in capsys.readouterr().err


@pytest.mark.parametrize("form", FORMATS)
def test_show_says_what_a_run_is(tmp_path: Path, capsys: pytest.CaptureFixture[str], form: str) -> None:
    path = run_folder(tmp_path, is_sealed=True, device={"name": "AMD EPYC"}, clock="virtual")
    assert run(["show", str(path), "--format", form]) == 0
    out = capsys.readouterr().out
    for word in (path.name, "A small one", "AMD EPYC", "virtual", "block_size", "cases.parquet", "kvbench report"):
        assert word in out.replace("\\_", "_")


def test_an_unfinished_run_is_told_how_to_go_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with RunFolder.create(tmp_path, plan(2, 2)) as folder:
        folder.add(sample(0, 0))
    assert run(["show", str(folder.path), "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["state"] == "unfinished"
    assert document["statuses"] == {"ok": 1, "not run": 3}
    assert any(command.startswith(f"kvbench sweep --resume {folder.path}") for command in document["next"])


def test_a_case_in_full_has_every_sample_and_the_range_of_every_metric(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with RunFolder.create(tmp_path, plan(2, 2)) as folder:
        folder.add(sample(1, 0, ttft_p50_s=0.1))
        folder.add(sample(1, 1, status="crash", error="exit -11"))
    assert run(["show", str(folder.path), "--case", case_id(1), "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["axes"] == {"block_size": 16}
    assert [(s["status"], s["error"]) for s in document["samples"]] == [("ok", None), ("crash", "exit -11")]
    assert document["metrics"]["ttft_p50_s"] == {"median": 0.1, "min": 0.1, "max": 0.1, "count": 1}
    assert run(["show", str(folder.path), "--case", case_id(1)]) == 0
    assert "100 ms" in capsys.readouterr().out


@pytest.mark.parametrize(("wanted", "word"), [("ffff", "no case"), ("0000", "2 cases go by"), ("", "no case")])
def test_a_case_that_is_not_there_or_not_alone_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], wanted: str, word: str
) -> None:
    assert run(["show", str(run_folder(tmp_path)), "--case", wanted]) == 2
    err = capsys.readouterr().err
    assert word in err
    assert "hint:" in err


@pytest.mark.parametrize("form", FORMATS)
def test_m68_text_from_outside_is_shown_as_text(tmp_path: Path, capsys: pytest.CaptureFixture[str], form: str) -> None:
    facts = plan(1, 1, device={"name": EVIL})
    facts["suite"] |= {"title": EVIL, "claim": EVIL, "effective": {"engine": {"trace": EVIL}}}
    facts["cases"][0]["axes"]["trace"] = EVIL
    with RunFolder.create(tmp_path, facts) as folder:
        folder.add(sample(0, 0, trace=EVIL, status="error", error=EVIL, warnings=[{"name": EVIL, "numbers": {}}]))
    for arguments in (["ls", str(tmp_path)], ["show", str(folder.path)], ["show", str(folder.path), "--case", "0"]):
        assert run([*arguments, "--format", form]) == 0
        out = capsys.readouterr().out
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", out)
        assert form != "md" or "<script>" not in out


def test_show_of_what_is_no_run_is_one_error_with_a_hint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["show", str(tmp_path)]) == 2
    assert "hint:" in capsys.readouterr().err


@pytest.mark.parametrize(
    "change",
    [
        {"repetitions": "three"},
        {"repetitions": None},
        {"models": []},
        {"device": "cpu"},
        {"suite": {"name": 3, "effective": []}},
    ],
)
def test_a_plan_that_was_changed_by_hand_never_ends_in_a_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: dict[str, object]
) -> None:
    path = run_folder(tmp_path)
    (path / "plan.json").write_text(json.dumps({**json.loads((path / "plan.json").read_text()), **change}))
    for arguments in (["show", str(path)], ["show", str(path), "--case", case_id(0)], ["ls", str(tmp_path)]):
        assert run(arguments) in (0, 5)
        assert "Traceback" not in capsys.readouterr().err
