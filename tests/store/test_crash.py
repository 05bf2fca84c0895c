"""kill -9 between any two writes: the disk as it is before each operation that changes it is read and resumed (M11)."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kvbench.store.files import HashedFile
from kvbench.store.run import Run, open_run
from kvbench.store.run_folder import RunFolder
from tests.store.samples import case_id, plan, request, sample

Told = list[tuple[str, int]]


class Kills:
    """Copies of the folder `disk` as a kill leaves it: before every operation that changes the disk, and in the middle
    of every file's first write (later ones leave the same kind of torso). What Python still buffers dies with the
    process, so it is not in a copy. Each copy comes with what had been `told` by then; equal ones are kept once."""

    def __init__(self, disk: Path, copies: Path, told: Told) -> None:
        self.found: list[tuple[Path, Told]] = []
        self.count = 0
        self._disk, self._copies, self._told = disk, copies, told
        self._seen: set[tuple[str, int]] = set()
        self._is_copying = False

    @contextmanager
    def watched(self) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            for name in ("replace", "rename", "mkdir", "unlink", "rmdir"):
                patch.setattr(os, name, self._before(getattr(os, name)))
            patch.setattr(HashedFile, "write", self._amid(HashedFile.write))
            patch.setattr(HashedFile, "seal", self._before(HashedFile.seal))
            yield

    def _before(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*args: Any, **options: Any) -> Any:
            self._kill()
            return call(*args, **options)

        return watched

    def _amid(self, write: Callable[..., int]) -> Callable[..., int]:
        def watched(file: HashedFile, data: Any) -> int:
            if file.tell():
                return write(file, data)
            view = memoryview(data).cast("B")
            written = write(file, view[: len(view) // 2])
            file._file.flush()
            self._kill()
            return written + write(file, view[written:])

        return watched

    def _kill(self) -> None:
        if self._is_copying or not self._disk.exists():
            return
        self.count += 1
        state = digest_of_tree(self._disk), len(self._told)
        if state in self._seen:
            return
        self._seen.add(state)
        copy = self._copies / str(self.count)
        self._is_copying = True
        shutil.copytree(self._disk, copy)
        self._is_copying = False
        self.found.append((copy, list(self._told)))


def digest_of_tree(folder: Path) -> str:
    """Over the names and the contents of everything in it."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        digest.update(f"{path.relative_to(folder)}\0{path.is_dir()}\0".encode())
        digest.update(b"" if path.is_dir() else hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


@pytest.fixture(autouse=True)
def _quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """A killed process, unlike a power cut, loses nothing that was written: flushing is not what is tested here."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)


def sweep(out: Path, told: Told) -> None:
    """One failed and one good sample, sealed; the failed one again; sealed. `told` grows when a sample is stored."""
    with RunFolder.create(out, plan(2, 1)) as folder:
        folder.write_workload("w" * 64, [request(0)])
        folder.add(sample(0, 0, status="error", error="first try"))
        folder.add(sample(1, 0))
        told.append((case_id(1), 0))
        folder.seal()
        folder.add(sample(0, 0))
        told.append((case_id(0), 0))
        folder.seal()


def resume(path: Path) -> None:
    with RunFolder.resume(path, plan(2, 1)) as folder:
        folder.write_workload("w" * 64, [request(0)])
        for case, number in folder.todo():
            folder.add(sample(int(case, 16), number))
        folder.seal()


def check_finished(path: Path, told: Told) -> Run:
    """Whatever was reported as stored is readable, ok, and once."""
    run = open_run(path)
    rows = {(r["case_id"], r["sample"]): r for r in run.case_rows}
    assert len(rows) == len(run.case_rows)
    for key in told:
        assert rows[key]["status"] == "ok"
    assert len(run.steps) == 3 * len(rows)
    assert len(run.requests) == 2 * len(rows)
    return run


def check_whole(path: Path) -> None:
    """As if nothing had happened."""
    run = check_finished(path, [(case_id(0), 0), (case_id(1), 0)])
    assert len(run.workload) == 1
    assert {p.name for p in path.iterdir()} >= {"plan.json", "manifest.json", "cases.parquet"}
    assert not (path / "parts").exists()
    assert not (path / "seal.json").exists()
    assert not list((path / ".staging").glob("*")) or not any((path / ".staging").rglob("*.parquet"))


def test_m11_a_kill_at_any_write_of_a_sweep_keeps_what_was_finished_and_resume_completes(tmp_path: Path) -> None:
    told: Told = []
    kills = Kills(tmp_path / "out", tmp_path / "killed", told)
    with kills.watched():
        sweep(tmp_path / "out", told)
    assert kills.count > 100
    assert len(kills.found) > 60
    for out, told_by_then in kills.found:
        runs = [p for p in out.iterdir() if not p.name.startswith(".")]
        for path in runs:
            check_finished(path, told_by_then)
            resume(path)
            check_whole(path)
        assert runs or not told_by_then


def test_m11_a_kill_at_any_write_of_a_resume_is_made_good_by_the_next(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path, plan(3, 1)) as folder:
        folder.write_workload("w" * 64, [request(0)])
        folder.add(sample(2, 0))
        folder.add(sample(1, 0))
        folder.seal()
        folder.add(sample(0, 0, status="crash"))
    kills = Kills(folder.path, tmp_path / "killed", [(case_id(1), 0)])
    with kills.watched():
        resume(folder.path)
    assert kills.count > 50
    assert len(kills.found) > 30
    for path, told in kills.found:
        assert check_finished(path, told).case_rows
        resume(path)
        check_whole(path)
