"""Expected times: where they come from, and what is said when there are none."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvbench.spec.load import LoadedSuite
from kvbench.sweep import estimate as module
from kvbench.sweep.estimate import estimate
from kvbench.sweep.planner import make_plan

Mini = Callable[..., LoadedSuite]


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (
            subprocess.CalledProcessError(1, "python", stderr="Traceback …\nMemoryError: no room\n"),
            "MemoryError: no room",
        ),
        (subprocess.CalledProcessError(-9, "python", stderr=""), "no reason given"),
        (subprocess.TimeoutExpired("python", 120), "more than 120 s"),
    ],
)
def test_a_calibration_that_fails_is_told_with_its_reason(
    error: Exception, reason: str, mini: Mini, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(module.subprocess, "run", fails)
    found = estimate(make_plan(mini()), tmp_path)
    assert found.total_s is None
    assert set(found.case_s.values()) == {None}
    assert reason in found.source
