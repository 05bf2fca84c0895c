"""The store and its documents: whole, or said to be damaged; never a guess."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvbench.errors import CannotRunError, DataError, UsageError
from kvbench.tuned.files import keep, read_document, read_store, write_document
from kvbench.tuned.winner import winner_from
from tests.tuned.entries import KEY, winner


def test_what_is_kept_is_read_back_and_a_new_winner_replaces_the_old(tmp_path: Path) -> None:
    keep(winner(), tmp_path)
    keep(winner(configuration={"split": 64}), tmp_path)
    keep(winner(replace(KEY, batch=64)), tmp_path)
    found = read_store(tmp_path)
    assert found.problems == ()
    assert {w.key.batch: w.configuration.get("split") for w in found.table.winners} == {8: 64, 64: 512}
    assert not list(tmp_path.glob(".*"))


def test_a_store_that_is_not_there_is_empty(tmp_path: Path) -> None:
    assert read_store(tmp_path / "none").table.winners == []


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[:-20],
        lambda text: "",
        lambda text: "[]",
        lambda text: text.replace("512", "2048"),
        lambda text: text.replace('"gain": 1.2', '"gain": NaN'),
        lambda text: text.replace('"batch": 8', '"batch": "8"'),
        lambda text: text.replace('"verdict"', '"verdikt"'),
        lambda text: text.replace('"schema_version": 1', '"schema_version": 2'),
        lambda text: text.replace('"schema_version": 1', '"schema_version": "1"'),
        lambda text: text.replace('"schema_version": 1', '"schema_version": true'),
        lambda text: text.replace('"gain": 1.2', '"gain": 1e999'),
        lambda text: text.replace('"gain": 1.2', f'"gain": 1{"0" * 400}'),
        lambda text: text.replace('"tile": 64', '"tile": 1e999'),
        lambda text: text.replace("a rule", "\\ud800"),
        lambda text: text.replace('"rounds": 6', '"rounds": "6"'),
        lambda text: text.replace('"tuned_at": "2020-01-01T00:00:00Z"', '"tuned_at": 5'),
        lambda text: "[" * 100_000,
    ],
)
def test_a_damaged_file_is_left_out_and_named_and_the_others_count(tmp_path: Path, damage: Any) -> None:
    path = keep(winner(), tmp_path)
    keep(winner(replace(KEY, batch=64)), tmp_path)
    before = path.read_text(encoding="utf-8")
    assert damage(before) != before
    path.write_text(damage(before), encoding="utf-8")
    found = read_store(tmp_path)
    assert [w.key.batch for w in found.table.winners] == [64]
    (problem,) = found.problems
    assert str(path) in problem


def test_a_file_under_the_name_of_another_key_is_left_out(tmp_path: Path) -> None:
    path = keep(winner(), tmp_path)
    path.rename(tmp_path / "0123456789abcdef.json")
    assert "another key" in read_store(tmp_path).problems[0]


def test_a_document_is_read_back_as_it_was_and_refused_when_it_is_not(tmp_path: Path) -> None:
    path, both = tmp_path / "tuned.json", [winner(), winner(replace(KEY, batch=64))]
    write_document(path, both)
    assert sorted(w.key.batch for w in read_document(path)) == [8, 64]
    data = json.loads(path.read_text())
    path.write_text(json.dumps({**data, "winners": data["winners"][:1]}))
    with pytest.raises(DataError, match="digest"):
        read_document(path)
    path.write_text("{}")
    with pytest.raises(DataError, match="no document"):
        read_document(path)
    with pytest.raises(UsageError, match="cannot read"):
        read_document(tmp_path / "none.json")


def test_a_winner_of_a_newer_kvbench_says_so() -> None:
    with pytest.raises(UsageError, match="newer kvbench"):
        winner_from({**winner().to_dict(), "schema_version": 99}, "x.json")


def test_what_is_no_file_is_neither_read_for_ever_nor_replaced(tmp_path: Path) -> None:
    """A rename would put a file in the place of a device, and a pipe that nobody writes to never ends."""
    pipe = tmp_path / "pipe.json"
    os.mkfifo(pipe)
    assert "not a regular file" in read_store(tmp_path).problems[0]
    for path in (pipe, tmp_path, Path(), Path("/dev/null")):
        with pytest.raises(UsageError, match="no regular file"):
            write_document(path, [winner()])
    assert pipe.is_fifo()


def test_a_store_in_the_place_of_which_a_file_lies_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "tuned").write_text("not a folder")
    with pytest.raises(CannotRunError, match="cannot write"):
        keep(winner(), tmp_path / "tuned")
