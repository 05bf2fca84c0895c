"""Expected times: where they come from, and what is said when there are none."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvbench.errors import CannotRunError
from kvbench.spec.load import LoadedSuite
from kvbench.sweep import estimate as module
from kvbench.sweep.estimate import Rates, announcement, estimate
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


SLOW = ("requests = 4\n", 'requests = 4\narrival = { kind = "constant", rate = 0.1 }\n')
"""A request every ten seconds: the last one after half a minute."""


def test_a_sweep_says_beforehand_how_long_by_an_earlier_run(
    mini: Mini, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """16 prefill tokens a request at 1/s and 4 decode tokens at 1/s: 20 s a request, 4 of them, 2 cases."""
    plan = make_plan(mini(('{ kind = "uniform", low = 8, high = 24 }', "16")), repetitions=3)
    rates = Rates(1.0, 1.0, 5.0, "run yesterday")
    monkeypatch.setattr(module, "_from_newest_run", lambda *_: ({}, rates))
    assert announcement(plan, tmp_path, 6) == "6 samples to take, about 8m15s (by run yesterday)"
    assert announcement(plan, tmp_path, 2) == "2 samples to take, about 2m45s (by run yesterday)"


def test_without_one_nothing_is_measured_for_it_and_slow_arrivals_are_counted(
    mini: Mini, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_calibrated", lambda *_: pytest.fail("a calibration"))
    quick, slow = make_plan(mini()), make_plan(mini(SLOW), repetitions=2)
    assert announcement(quick, tmp_path, 2) == "2 samples to take; --dry-run estimates the time"
    last_s = slow.cases[0].workload.last_arrival_s if slow.cases[0].workload else 0.0
    assert last_s >= 30
    words = f"4 samples to take; the arrivals of their requests take {module.format_duration(4 * last_s)} at least"
    assert announcement(slow, tmp_path, 4) == f"{words}; --dry-run estimates the time"


def test_requests_that_arrive_after_the_case_is_stopped_are_refused_with_the_ways_out(mini: Mini) -> None:
    shorter = ("repetitions = 1\n", "repetitions = 1\ntimeout_s = 20\n")
    with pytest.raises(CannotRunError, match=r"stopped after timeout_s = 20.*--limit.*--scale-time.*all-at-once"):
        make_plan(mini(SLOW, shorter))
    assert make_plan(
        mini(SLOW, shorter, ("repetitions = 1", 'clock = "virtual"\nrepetitions = 1'), ("threads = 1\n", ""))
    ).runnable
