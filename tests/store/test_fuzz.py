"""Whatever happens to the bytes of a run folder: it reads, or there is one error that a user can act on."""

from __future__ import annotations

import contextlib
import random
import shutil
from pathlib import Path

import pytest

from kvbench.errors import InternalError, KvbenchError
from kvbench.report.build import build_report
from kvbench.store.run import open_run
from tests.store.samples import run_folder


def damage(path: Path, rng: random.Random) -> None:
    data = bytearray(path.read_bytes())
    for _ in range(rng.randint(1, 4)):
        if data:
            data[rng.randrange(len(data))] = rng.randrange(256)
    path.write_bytes(bytes(data[: rng.choice([len(data), len(data), len(data) // 3])]))


def read_all(path: Path) -> None:
    run = open_run(path)
    build_report(run)
    for table in (run.cases, run.requests, run.steps, run.workload):
        assert table.shape[1] > 5
    assert run.manifest["run_id"]


@pytest.mark.parametrize("is_sealed", [False, True])
def test_damaged_bytes_never_end_in_a_traceback(tmp_path: Path, is_sealed: bool) -> None:
    whole = run_folder(tmp_path / "whole", is_sealed=is_sealed)
    files = sorted(p.relative_to(whole) for p in whole.rglob("*.*") if p.is_file())
    rng = random.Random(7)
    for number in range(60):
        copy = tmp_path / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(whole, copy)
        damage(copy / files[number % len(files)], rng)
        with contextlib.suppress(KvbenchError):
            try:
                read_all(copy)
            except InternalError as error:
                raise AssertionError(f"{files[number % len(files)]}: {error}") from error
