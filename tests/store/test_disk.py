"""A full disk and a closed folder: one clear error, nothing half-written, finished samples still readable (M11)."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kvbench.errors import CannotRunError, KvbenchError, UsageError
from kvbench.store.files import HashedFile
from kvbench.store.parts import Sample
from kvbench.store.run import open_run
from kvbench.store.run_folder import RunFolder
from tests.store.samples import plan, request, request_record, sample


def _failing(code: int) -> Callable[..., Any]:
    def fail(*args: Any, **options: Any) -> Any:
        raise OSError(code, os.strerror(code))

    return fail


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[RunFolder]:
    with RunFolder.create(tmp_path, plan()) as found:
        found.add(sample(0, 0))
        yield found


@pytest.mark.parametrize("work", ["add", "seal", "write_workload"])
@pytest.mark.parametrize("where", ["write", "seal"])
def test_m11_a_full_disk_is_one_clear_error_and_keeps_what_is_finished(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch, work: str, where: str
) -> None:
    arguments: dict[str, tuple[Any, ...]] = {"add": (sample(1, 0),), "seal": (), "write_workload": ("w", [request()])}
    with monkeypatch.context() as patch:
        patch.setattr(HashedFile, where, _failing(errno.ENOSPC))
        with pytest.raises(CannotRunError, match="no space left") as caught:
            getattr(folder, work)(*arguments[work])
    assert caught.value.exit_code == 4
    assert caught.value.hint
    assert len(open_run(folder.path).cases) == 1
    folder.add(sample(1, 0))
    folder.seal()
    assert len(open_run(folder.path).cases) == 2


@pytest.mark.parametrize("code", [errno.EROFS, errno.EACCES])
def test_a_closed_folder_is_a_usage_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    monkeypatch.setattr(os, "mkdir", _failing(code))
    with pytest.raises(UsageError, match="cannot write"):
        RunFolder.create(tmp_path / "out", plan())


def test_a_file_where_the_results_folder_should_be_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "results").write_text("")
    with pytest.raises(UsageError, match="cannot write"):
        RunFolder.create(tmp_path / "results", plan())


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 384 KiB."""
    path = tmp_path / "disk"
    path.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=384k", "none", path], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("needs the right to mount a tmpfs")
    yield path
    subprocess.run(["umount", "-l", path], check=True)


def test_m11_a_disk_that_fills_up_keeps_every_finished_sample(tiny_disk: Path) -> None:
    """Samples until the disk is full, for real: each one that was stored reads back, the rest is an error."""
    with RunFolder.create(tiny_disk, plan(1, 1000)) as folder:
        stored, error = _fill(folder)
        assert stored > 0
        assert "no space left" in error
        run = open_run(folder.path)
        assert run.cases["sample"].tolist() == list(range(stored))
        assert len(run.requests) == 40 * stored
        assert run.problems == []


def _fill(folder: RunFolder) -> tuple[int, str]:
    """Samples stored before the first error, and the error."""
    for number in range(1000):
        try:
            folder.add(_bulky(number))
        except KvbenchError as error:
            return number, error.message
    return 1000, ""


def _bulky(number: int) -> Sample:
    found = sample(0, number)
    found.requests = [request_record(n, itl_s=[n + i * 1e-7 for i in range(20)]) for n in range(40)]
    return found
