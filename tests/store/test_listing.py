"""Runs at a glance: finished, unfinished, being written, damaged; found without torch, pandas or pyarrow."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kvbench.errors import UsageError
from kvbench.store.listing import SORTS, entry_of, list_runs
from kvbench.store.run_folder import RunFolder
from tests.store.samples import plan, run_folder, sample


def test_counts_of_a_run_are_the_same_before_and_after_sealing(tmp_path: Path) -> None:
    open_one, sealed = (entry_of(run_folder(tmp_path / str(n), 2, 3, is_sealed=n)) for n in (False, True))
    for entry in (open_one, sealed):
        assert (entry.state, entry.cases, entry.ok_samples, entry.failed_samples) == ("finished", 2, 6, 0)
        assert (entry.planned_samples, entry.suite, entry.clock) == (6, "small", "wall")
        assert entry.duration_s is not None
        assert entry.duration_s >= 0
        assert entry.size_bytes == sum(f.stat().st_size for f in entry.path.rglob("*") if f.is_file())


def test_what_failed_and_what_is_still_to_do_are_counted_apart(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path, plan(2, 2)) as folder:
        folder.add(sample(0, 0))
        folder.add(sample(1, 0, status="crash", error="exit -11"))
    entry = entry_of(folder.path)
    assert (entry.state, entry.ok_samples, entry.failed_samples, entry.planned_samples) == ("unfinished", 1, 1, 4)
    assert f"--resume {folder.path}" in entry.note


def test_a_sample_measured_again_replaces_the_failed_one(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path, plan(2, 1)) as folder:
        folder.add(sample(0, 0))
        folder.add(sample(1, 0, status="crash", error="exit -11"))
        folder.seal()
        folder.add(sample(1, 0))
    entry = entry_of(folder.path)
    assert (entry.state, entry.ok_samples, entry.failed_samples) == ("finished", 2, 0)


@pytest.mark.skipif(not Path("/proc/locks").exists(), reason="the system does not tell who holds a lock")
def test_a_run_that_is_being_written_is_running_and_stays_lockable(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path, plan(2, 2)) as folder:
        folder.add(sample(0, 0))
        assert entry_of(folder.path).state == "running"
    assert entry_of(folder.path).state == "unfinished"
    RunFolder(folder.path).close()


@pytest.mark.parametrize(
    ("name", "text", "word"),
    [
        ("manifest.json", "{", "manifest.json"),
        ("manifest.json", "[" * 100_000, "manifest.json cannot be read"),
        ("manifest.json", '{"schema_version": 1}', "not what kvbench writes"),
        ("manifest.json", '{"schema_version": 99}', "newer kvbench"),
        ("manifest.json", '{"schema_version": 1, "controlled": 3, "volatile": []}', "not what kvbench writes"),
        ("cases.parquet", None, "cases.parquet missing"),
    ],
)
def test_a_damaged_run_says_why_and_does_not_hide_the_others(
    tmp_path: Path, name: str, text: str | None, word: str
) -> None:
    good, bad = (run_folder(tmp_path, is_sealed=True) for _ in range(2))
    if text is None:
        (bad / name).unlink()
    else:
        (bad / name).write_text(text)
    found = {run.path: run for run in list_runs(tmp_path)}
    assert found[good].state == "finished"
    assert found[bad].state == "damaged"
    assert word in found[bad].note


@pytest.mark.parametrize("sort", SORTS)
@pytest.mark.parametrize("created_at", [5, "yesterday", ["2026"]])
def test_a_time_that_is_none_is_damage_and_orders_nothing(tmp_path: Path, sort: str, created_at: object) -> None:
    good, bad = (run_folder(tmp_path, is_sealed=True) for _ in range(2))
    manifest = json.loads((bad / "manifest.json").read_text())
    manifest["volatile"]["created_at"] = created_at
    (bad / "manifest.json").write_text(json.dumps(manifest))
    found = {run.path: run for run in list_runs(tmp_path, sort)}
    assert (found[bad].state, found[bad].created_at) == ("damaged", None)
    assert found[good].state == "finished"


def test_a_run_that_may_not_be_read_does_not_hide_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good, bad = (run_folder(tmp_path, is_sealed=True) for _ in range(2))
    stat = os.stat

    def refused(path: Any, **options: Any) -> Any:
        if not isinstance(path, int) and Path(path).parent == bad:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return stat(path, **options)

    monkeypatch.setattr(os, "stat", refused)
    found = {run.path: run for run in list_runs(tmp_path)}
    monkeypatch.undo()
    assert found[good].state == "finished"
    assert found[bad].state == "damaged"
    assert "cannot be read: Permission denied" in found[bad].note


def test_other_folders_are_no_runs_but_one_with_the_name_of_a_run_is(tmp_path: Path) -> None:
    for name in ("gate-x-20260101T000000Z", "notes", ".small-20260101T000000Z-abcdef", "small-20260101T000000Z-abcdef"):
        (tmp_path / name).mkdir()
    (tmp_path / "README.md").write_text("x")
    (found,) = list_runs(tmp_path)
    assert (found.run_id, found.state) == ("small-20260101T000000Z-abcdef", "damaged")
    assert "plan.json" in found.note


def test_a_loop_of_links_and_a_file_in_place_of_a_folder_do_no_harm(tmp_path: Path) -> None:
    path = run_folder(tmp_path / "runs", is_sealed=True)
    os.symlink(path, path / "again")
    assert entry_of(path).state == "finished"
    with pytest.raises(UsageError, match="no folder"):
        list_runs(path / "plan.json")


@pytest.mark.parametrize("sort", SORTS)
def test_the_last_line_is_the_newest_largest_or_longest(tmp_path: Path, sort: str) -> None:
    paths = [run_folder(tmp_path, samples, is_sealed=True) for samples in (1, 3, 2)]
    for n, path in enumerate(paths):
        for name in ("plan.json", "manifest.json"):
            text = json.loads((path / name).read_text())
            part = text if name == "plan.json" else text["volatile"]
            part["created_at"] = f"2026-01-0{n + 1}T00:00:00+00:00"
            (path / name).write_text(json.dumps(text))
    largest = {"when": 2, "suite": 2, "duration": 0, "size": 1}
    assert list_runs(tmp_path, sort)[-1].path == paths[largest[sort]]


def test_listing_imports_neither_pandas_nor_pyarrow_nor_pydantic(tmp_path: Path) -> None:
    run_folder(tmp_path, is_sealed=True)
    code = (
        "import sys; from kvbench.cli.main import run; run(['ls', sys.argv[1]]); "
        "sys.exit(', '.join({'torch', 'pandas', 'pyarrow', 'pydantic', 'scipy', 'numpy'} & sys.modules.keys()) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "small-" in done.stdout
