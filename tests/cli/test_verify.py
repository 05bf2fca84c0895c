"""`kvbench verify` from the command line: exit codes, the scenario file, the formats."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvbench.cli.main import run
from tests.verify.mutations import MUTATIONS


def test_a_sound_cache_exits_0_with_its_figures(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["verify", "--steps", "300", "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["steps"] >= 300
    assert document["failures"] == 0
    assert document["found"] is None


def test_a_broken_one_exits_1_and_leaves_a_scenario_that_replays(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with monkeypatch.context() as patch:
        MUTATIONS["skip_a_decref"](patch)
        assert run(["verify", "--steps", "2000", "--out", str(tmp_path), "--format", "json"]) == 1
        found = json.loads(capsys.readouterr().out)["found"]
        assert Path(found["scenario_file"]).parent == tmp_path
        assert run(["verify", "--replay", found["scenario_file"]]) == 1
        assert "Found" in capsys.readouterr().out
    assert run(["verify", "--replay", found["scenario_file"]]) == 0


def test_a_scenario_that_cannot_be_written_is_still_reported(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    MUTATIONS["skip_a_decref"](monkeypatch)
    assert run(["verify", "--steps", "2000", "--out", str(tmp_path / "file" / "folder")]) == 1
    said = capsys.readouterr()
    assert "cannot be written" in said.err
    assert "seed" in said.out


@pytest.mark.parametrize(
    "args",
    [["--steps", "0"], ["--seconds", "-1"], ["--jobs", "0"], ["--fault-rate", "2"], ["--replay", "nowhere.json"]],
)
def test_bad_options_exit_2(args: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["verify", *args]) == 2
    assert "error:" in capsys.readouterr().err


def test_a_file_that_is_no_scenario_exits_2_with_a_hint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(b"\xff\xfe")
    assert run(["verify", "--replay", str(path)]) == 2
    assert "hint:" in capsys.readouterr().err
