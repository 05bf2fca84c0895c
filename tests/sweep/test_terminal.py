"""What a person sees on a real terminal, and a log does not."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from kvbench.spec.load import LoadedSuite

CURSOR = re.compile(rb"\x1b\[[0-9;?]*[A-HJKlhsu]")


def _on_a_terminal(arguments: list[str], timeout_s: float = 120.0) -> tuple[int, bytes]:
    """Exit code and everything written to the pseudo-terminal that is the command's stdin, stdout and stderr."""
    ours, theirs = pty.openpty()
    env = {key: value for key, value in os.environ.items() if key not in ("CI", "NO_COLOR")}
    process = subprocess.Popen(
        [sys.executable, "-m", "kvbench", *arguments],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**env, "TERM": "xterm-256color", "COLUMNS": "120", "LINES": "40"},
        start_new_session=True,
    )
    os.close(theirs)
    seen, deadline = b"", time.monotonic() + timeout_s
    try:
        while time.monotonic() < deadline:
            if not select.select([ours], [], [], 0.5)[0]:
                continue
            try:
                chunk = os.read(ours, 1 << 16)
            except OSError:  # Linux: the other side has closed the terminal
                break
            if not chunk:
                break
            seen += chunk
        return process.wait(timeout=10), seen
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def test_a_terminal_gets_a_live_bar_and_the_same_lines(mini: Callable[..., LoadedSuite], tmp_path: Path) -> None:
    code, seen = _on_a_terminal(["sweep", str(mini().path), "--out", str(tmp_path / "out")])
    assert code == 0, seen[-2000:]
    assert CURSOR.search(seen)
    assert b"[2/2]" in seen
    assert b"run: " in seen


def test_m66_a_log_gets_plain_lines_only(mini: Callable[..., LoadedSuite], tmp_path: Path) -> None:
    """No terminal, FORCE_COLOR set and CI set: colour at most, no cursor movement, no carriage return."""
    done = subprocess.run(
        [sys.executable, "-m", "kvbench", "sweep", str(mini().path), "--out", str(tmp_path / "out")],
        capture_output=True,
        check=False,
        env={**os.environ, "CI": "1", "FORCE_COLOR": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert not CURSOR.search(done.stderr + done.stdout)
    assert b"\r" not in done.stderr
    assert b"[2/2]" in done.stderr
