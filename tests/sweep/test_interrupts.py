"""Ctrl-C, a cancelled job, kill -9, a full disk: what is finished stays readable, and a resume completes the run."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kvbench.spec.load import LoadedSuite
from kvbench.store.run import open_run

from .conftest import MINI, Command

Spawn = Callable[..., Command]


@pytest.fixture
def suite_file(tmp_path: Path) -> Path:
    path = tmp_path / "mini.toml"
    path.write_text(MINI.replace('"engine.block_size" = [4, 16]', '"engine.block_size" = [2, 4, 8, 16]'))
    return path


def _only_run(out: Path) -> Path:
    (run,) = (path for path in out.iterdir() if path.name.startswith("mini-"))
    return run


def _workers_of(run: Path) -> list[int]:
    """Processes that run the worker module and have this run's folder open or as their job; none should be left."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            text = (entry / "cmdline").read_bytes() if entry.name.isdigit() else b""
            parent = (entry / "stat").read_text().rsplit(")", 1)[1].split()[1] if b"measure.worker" in text else ""
        except OSError:
            continue
        if parent == "1":
            found.append(int(entry.name))
    return found


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_m11_an_interrupt_keeps_what_is_finished_and_says_how_to_go_on(
    suite_file: Path, tmp_path: Path, command: Spawn, number: signal.Signals
) -> None:
    """Ctrl-C (or a cancelled CI job) in the middle: exit 130, sealed, resumable by name alone."""
    sweep = command("sweep", str(suite_file), "--out", str(tmp_path / "out"))
    sweep.wait_for("[1/4]")
    sweep.signal(number)
    code, _, err = sweep.end()
    assert code == 130
    assert "Traceback" not in err
    run = _only_run(tmp_path / "out")
    assert f"--resume {run}" in err
    kept = open_run(run).cases
    assert 1 <= len(kept) < 4
    code, _, err = command("sweep", "--resume", str(run), "--format", "json").end()
    assert code == 0, err
    after = open_run(run).cases
    assert set(after["status"]) == {"ok"}
    assert len(after) == 4
    assert set(kept["started_at"]) <= set(after["started_at"])


def test_m11_kill_9_loses_the_case_in_progress_and_no_other(suite_file: Path, tmp_path: Path, command: Spawn) -> None:
    """The sweep is killed outright: its worker stops too, finished samples are readable, resume completes."""
    sweep = command("sweep", str(suite_file), "--out", str(tmp_path / "out"))
    sweep.wait_for("[2/4]")
    sweep.signal(signal.SIGKILL)
    sweep.end()
    run = _only_run(tmp_path / "out")
    deadline = time.monotonic() + 30
    while _workers_of(run) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not _workers_of(run)
    kept = open_run(run).cases
    assert len(kept) >= 2
    assert set(kept["status"]) == {"ok"}
    code, _, err = command("sweep", "--resume", str(run)).end()
    assert code == 0, err
    assert len(open_run(run).cases) == 4


def test_m11_a_read_only_results_folder_is_one_error(suite_file: Path, tmp_path: Path, command: Spawn) -> None:
    """The folder cannot be made: exit 2 or 4 with a hint, no traceback."""
    blocked = tmp_path / "file"
    blocked.write_text("")
    code, out, err = command("sweep", str(suite_file), "--out", str(blocked / "out")).end()
    assert code in (2, 4)
    assert "error:" in err
    assert "hint:" in err
    assert "Traceback" not in err
    assert out == ""


def test_m11_a_disk_that_fills_up_stops_the_sweep_and_keeps_finished_samples(
    suite_file: Path, tmp_path: Path, command: Spawn
) -> None:
    """A limit on file size stands in for the full disk: the worker cannot write its part."""
    import resource
    import subprocess
    import sys

    out = tmp_path / "out"
    done = subprocess.run(
        [sys.executable, "-m", "kvbench", "sweep", str(suite_file), "--out", str(out)],
        capture_output=True,
        text=True,
        preexec_fn=lambda: (
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN),
            resource.setrlimit(resource.RLIMIT_FSIZE, (12_000, 12_000)),
        ),
        env={**os.environ, "NUMBA_DISABLE_JIT": "0"},
        check=False,
    )
    assert done.returncode in (2, 4), done.stderr
    assert "Traceback" not in done.stderr
    assert "error:" in done.stderr


def test_a_sweep_that_lost_a_case_exits_3_and_keeps_the_rest(
    mini: Callable[..., LoadedSuite], tmp_path: Path, command: Spawn
) -> None:
    sizes = '"engine.kv_memory" = ["1MiB", "100TiB"]'
    suite = mini(('kv_memory = "1MiB"\n', ""), ('"engine.block_size" = [4, 16]', sizes))
    code, out, err = command("sweep", str(suite.path), "--out", str(tmp_path / "out")).end()
    assert code == 3, err
    assert "skipped" in out
    assert "1 of 2 samples are not ok" in err
    assert err.rstrip().splitlines()[-1].startswith("run: ")
