"""One way of naming a case, for every command that takes one."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kvbench.cli.main import run as command_line
from kvbench.errors import UsageError
from kvbench.report.choose import choose_case
from kvbench.store.run import Run
from tests.report.test_tables import EVIL
from tests.store.samples import run_folder

LABELS = ("block_size=8 kv_dtype=fp32", "block_size=80 kv_dtype=fp32", "block_size=8 kv_dtype=int8", EVIL)
CASES = [{"case_id": f"{n}a{n:010x}", "label": label, "axes": {}} for n, label in enumerate(LABELS)]
RUN = cast("Run", SimpleNamespace(path=Path("results/r"), plan={"cases": CASES}))


@pytest.mark.parametrize(
    ("asked", "which"),
    [
        (CASES[2]["case_id"], 2),
        ("1a", 1),
        (LABELS[0], 0),
        ("kv_dtype=int8", 2),
        ("  kv_dtype=int8\n block_size=8 ", 2),
        ("block_size=80", 1),
        ("int8", 2),
        (EVIL, 3),
    ],
)
def test_a_case_goes_by_its_id_its_label_the_front_words_or_a_part_of_them(asked: str, which: int) -> None:
    assert choose_case(RUN, asked) is CASES[which]


@pytest.mark.parametrize(
    ("asked", "says"), [("block_size=8", "2 cases go by"), ("zz", "no case"), ("", "no case"), (" ", "no case")]
)
def test_none_and_several_are_a_question_with_the_choices(asked: str, says: str) -> None:
    with pytest.raises(UsageError, match=says) as error:
        choose_case(RUN, asked)
    hint = str(error.value.hint)
    assert (CASES[0]["case_id"] in hint, CASES[2]["case_id"] in hint) == (True, True)
    assert (CASES[1]["case_id"] in hint) == (says == "no case")


@pytest.mark.parametrize("asked", ["block_size=7", "0000", "block_size"])
def test_show_and_export_say_the_same_of_a_case_that_is_not_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], asked: str
) -> None:
    path, said = str(run_folder(tmp_path)), []
    for arguments in (["show", path], ["export", path, "--perfetto", str(tmp_path / "t.json")]):
        assert command_line([*arguments, "--case", asked]) == 2
        said.append(capsys.readouterr().err)
    assert said[0] == said[1] != ""


def test_show_and_export_take_the_same_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, target = str(run_folder(tmp_path)), tmp_path / "t.json"
    assert command_line(["show", path, "--case", "block_size=16", "--format", "json"]) == 0
    shown: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert shown["axes"] == {"block_size": 16}
    assert command_line(["export", path, "--perfetto", str(target), "--case", "block_size=16"]) == 0
    assert json.loads(target.read_text())["otherData"]["case_id"] == shown["case_id"]
