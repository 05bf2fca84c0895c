"""Files of the user's are whole or as they were."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvbench.errors import UsageError
from kvbench.store.files import replacing, write_errors


def test_a_file_has_its_name_when_it_is_whole_and_not_before(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_bytes(b"old")
    with replacing(path) as file:
        file.write(b"new, " * 100_000)
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new, " * 100_000
    assert [found.name for found in tmp_path.iterdir()] == ["report.html"]


def test_what_fails_leaves_the_old_contents_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_bytes(b"old")
    with pytest.raises(TypeError), replacing(path) as file:
        file.writelines([b"half", "text"])  # type: ignore[list-item]
    assert path.read_bytes() == b"old"
    assert [found.name for found in tmp_path.iterdir()] == ["report.html"]


@pytest.mark.parametrize("old", [b"old", None])
def test_a_link_stays_a_link_and_what_it_names_is_written(tmp_path: Path, old: bytes | None) -> None:
    (tmp_path / "kept").mkdir()
    target, link = tmp_path / "kept" / "report.html", tmp_path / "latest.html"
    link.symlink_to("kept/report.html")
    if old is not None:
        target.write_bytes(old)
    with replacing(link) as file:
        file.write(b"new")
    assert link.is_symlink()
    assert target.read_bytes() == b"new"
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["kept", "latest.html", "report.html"]


def test_a_folder_in_the_way_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    with (
        pytest.raises(UsageError, match="cannot write"),
        write_errors(tmp_path / "taken"),
        replacing(tmp_path / "taken") as file,
    ):
        file.write(b"new")
    assert [found.name for found in tmp_path.iterdir()] == ["taken"]
