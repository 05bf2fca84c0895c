"""kill -9 between any two writes: every operation that changes the disk is the last one, once (M11)."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kvbench.store.files import HashedFile
from kvbench.store.run import open_run
from kvbench.store.run_folder import RunFolder
from tests.store.samples import case_id, plan, request, sample


class KilledError(BaseException):
    """The process is gone: no `except Exception` may see it, and nothing may be written afterwards."""


class MortalDisk:
    """Counts the operations that change the disk and dies at number `last`; a dying write leaves half of its data."""

    def __init__(self, last: int | None) -> None:
        self.last = last
        self.count = 0

    @property
    def is_dead(self) -> bool:
        return self.last is not None and self.count >= self.last

    def step(self) -> bool:
        """Whether this is the operation to die in; raises when dead already."""
        self.count += 1
        if self.last is not None and self.count > self.last:
            raise KilledError
        return self.count == self.last

    @contextmanager
    def mounted(self) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            for name in ("replace", "rename", "mkdir", "unlink", "rmdir"):
                patch.setattr(os, name, self._mortal(getattr(os, name)))
            patch.setattr(HashedFile, "write", self._half(HashedFile.write))
            patch.setattr(HashedFile, "seal", self._mortal(HashedFile.seal))
            patch.setattr(fcntl, "flock", lambda handle, how: None)
            yield

    def _mortal(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def mortal(*args: Any, **options: Any) -> Any:
            if self.step():
                raise KilledError
            return call(*args, **options)

        return mortal

    def _half(self, write: Callable[..., int]) -> Callable[..., int]:
        """The first write of every file counts: later ones leave the same kind of torso."""

        def half(file: HashedFile, data: Any) -> int:
            if (file.tell() == 0 or self.is_dead) and self.step():
                view = memoryview(data).cast("B")
                write(file, view[: len(view) // 2])
                file._file.flush()
                raise KilledError
            return write(file, data)

        return half


@pytest.fixture(autouse=True)
def _quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """A killed process, unlike a power cut, loses nothing that was written: flushing is not what is tested here."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)


def sweep(out: Path, told: list[tuple[str, int]]) -> None:
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


def operations(work: Callable[[], None]) -> int:
    disk = MortalDisk(None)
    with disk.mounted():
        work()
    return disk.count


def check_finished(path: Path, told: list[tuple[str, int]]) -> None:
    """Whatever was reported as stored is readable, ok, and once."""
    run = open_run(path)
    rows = {(r["case_id"], r["sample"]): r for r in run.case_rows}
    assert len(rows) == len(run.case_rows)
    for key in told:
        assert rows[key]["status"] == "ok"
    assert len(run.steps) == 3 * len(rows)
    assert len(run.requests) == 2 * len(rows)


def check_whole(path: Path) -> None:
    """As if nothing had happened."""
    check_finished(path, [(case_id(0), 0), (case_id(1), 0)])
    run = open_run(path)
    assert len(run.workload) == 1
    assert {p.name for p in path.iterdir()} >= {"plan.json", "manifest.json", "cases.parquet"}
    assert not (path / "parts").exists()
    assert not (path / "seal.json").exists()
    assert not list((path / ".staging").glob("*")) or not any((path / ".staging").rglob("*.parquet"))


def test_m11_a_kill_at_any_write_of_a_sweep_keeps_what_was_finished_and_resume_completes(tmp_path: Path) -> None:
    total = operations(lambda: sweep(tmp_path / "whole", []))
    assert total > 100
    for last in range(1, total + 1):
        out, told = tmp_path / str(last), list[tuple[str, int]]()
        with MortalDisk(last).mounted(), pytest.raises(KilledError):
            sweep(out, told)
        runs = [p for p in out.iterdir() if not p.name.startswith(".")] if out.exists() else []
        for path in runs:
            check_finished(path, told)
            resume(path)
            check_whole(path)
        assert runs or not told


def test_m11_a_kill_at_any_write_of_a_resume_is_made_good_by_the_next(tmp_path: Path) -> None:
    def half_done(out: Path) -> Path:
        with RunFolder.create(out, plan(3, 1)) as folder:
            folder.write_workload("w" * 64, [request(0)])
            folder.add(sample(2, 0))
            folder.add(sample(1, 0))
            folder.seal()
            folder.add(sample(0, 0, status="crash"))
            return folder.path

    total = operations(lambda: resume(half_done(tmp_path / "whole"))) - operations(
        lambda: half_done(tmp_path / "half") and None
    )
    assert total > 50
    for last in range(1, total + 1):
        path = half_done(tmp_path / str(last))
        with MortalDisk(last).mounted(), pytest.raises(KilledError):
            resume(path)
        assert open_run(path).case_rows
        check_finished(path, [(case_id(1), 0)])
        resume(path)
        check_whole(path)
