"""Files that a user names: only an earlier result of the same kind is replaced, and whole or not at all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import pytest

from kvbench.errors import UsageError
from kvbench.report.ci.write import FORMS
from kvbench.report.html.page import TARGET as PAGE
from kvbench.report.timeline.write import TARGET as TIMELINE
from kvbench.store.files import to_json
from kvbench.store.targets import Target, check_target, json_target, writing
from kvbench.sweep.live_output import TARGET as TEXTFILE

KINDS = {
    "fit": json_target("kvbench fitted model", makes_folder=True),
    "quality": json_target("kvbench quality"),
    "page": PAGE,
    "timeline": TIMELINE,
    "textfile": TEXTFILE,
    **{ending: form.target for ending, form in FORMS.items()},
}
FOREIGN = (
    b"",
    b"a table",
    b"\x1f\x8b broken",
    b"PAR1 and no more",
    b"# A page of notes\n",
    b"<html><head><title>kvbench</title>",
    b'<?xml version="1.0"?><testsuites><testsuite name="pytest"/></testsuites>',
    to_json({"schema_version": 1, "run_id": "x"}),
    "\ud800".encode("utf-8", "surrogatepass"),
)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_earlier_result_is_left_as_it_is(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "held"
    for held in FOREIGN:
        path.write_bytes(held)
        with pytest.raises(UsageError, match="there already and is no") as error, writing(path, KINDS[kind]):
            pytest.fail("nothing may be written")
        assert error.value.hint
        assert path.read_bytes() == held
    assert [found.name for found in tmp_path.iterdir()] == ["held"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_and_a_device_are_refused(kind: str, tmp_path: Path) -> None:
    for path in (tmp_path, Path(), Path("/dev/null")):
        with pytest.raises(UsageError, match=r"is a folder|no regular file"):
            check_target(path, KINDS[kind])


def anything(is_ours: bool) -> Callable[[Path], bool]:
    return lambda _: is_ours


def cut_short(file: BinaryIO) -> None:
    file.write(b"half")
    raise ValueError("cut")


def test_an_earlier_result_is_replaced_when_the_new_one_is_whole(tmp_path: Path) -> None:
    path, target = tmp_path / "found", Target("result", anything(True))
    path.write_text("old")
    with pytest.raises(ValueError, match="cut"), writing(path, target) as file:
        cut_short(file)
    assert path.read_text() == "old"
    with writing(path, target) as file:
        file.write(b"new")
    assert path.read_text() == "new"
    assert [found.name for found in tmp_path.iterdir()] == ["found"]


def test_a_folder_is_made_only_where_the_command_makes_one(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "found"
    with pytest.raises(UsageError, match="is no folder"):
        check_target(path, Target("result", anything(True)))
    makes = Target("result", anything(True), makes_folder=True)
    check_target(path, makes)
    assert not path.parent.exists()
    with writing(path, makes) as file:
        file.write(b"new")
    assert path.read_bytes() == b"new"
    with pytest.raises(UsageError, match="is no folder"):
        check_target(path / "below", makes)


def test_a_result_of_another_form_is_not_an_earlier_one(tmp_path: Path) -> None:
    path = tmp_path / "found.json"
    path.write_bytes(to_json({"format": "kvbench quality", "version": 1}))
    check_target(path, KINDS["quality"])
    with pytest.raises(UsageError, match='is no "kvbench fitted model" file'):
        check_target(path, KINDS["fit"])
