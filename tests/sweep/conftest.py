"""A suite small enough to be measured for real in a test, and the command line as a process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kvbench.spec.load import LoadedSuite, load_suite

MINI = """
name = "mini"
[model]
name = "tiny-llama"
[engine]
kv_memory = "1MiB"
max_context = 256
max_sequences = 4
attention = "torch"
[workload]
requests = 4
input_tokens = { kind = "uniform", low = 8, high = 24 }
output_tokens = 4
[axes]
"engine.block_size" = [4, 16]
[measure]
repetitions = 1
warmup_requests = 2
threads = 1
redo_share = 0.0
"""


@pytest.fixture
def mini(tmp_path: Path) -> Callable[..., LoadedSuite]:
    """The suite, with pieces of its text replaced."""

    def make(*replacements: tuple[str, str]) -> LoadedSuite:
        text = MINI
        for old, new in replacements:
            assert old in text
            text = text.replace(old, new)
        path = tmp_path / "mini.toml"
        path.write_text(text)
        return load_suite(path)

    return make


class Command:
    """`kvbench …` in a process of its own, so that it can be interrupted and killed."""

    def __init__(self, *arguments: str, env: dict[str, str] | None = None) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "kvbench", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **(env or {})},
            start_new_session=True,
        )

    def wait_for(self, text: str, timeout_s: float = 120.0) -> None:
        """Until a line of talk contains the text."""
        assert self.process.stderr is not None
        deadline = time.monotonic() + timeout_s
        for line in self.process.stderr:
            if text in line:
                return
            assert time.monotonic() < deadline, f"no line with {text!r}"
        raise AssertionError(f"the process ended without a line with {text!r}")

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.process.pid, number)

    def end(self, timeout_s: float = 120.0) -> tuple[int, str, str]:
        out, err = self.process.communicate(timeout=timeout_s)
        return self.process.returncode, out, err


@pytest.fixture
def command() -> Callable[..., Command]:
    return Command
