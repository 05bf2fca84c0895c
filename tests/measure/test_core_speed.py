"""A shared core is known by a loop of fixed length, and calls on it are set aside."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from kvbench.measure import core_speed, kernel_timing
from kvbench.measure.core_speed import EVERY_S, CoreSpeed, Probed
from kvbench.measure.kernel_timing import time_calls
from kvbench.measure.precision import MIN_CALLS, StoppingRule
from kvbench.measure.timers import Call, Timing

PROBE_S, CALL_S = 30e-6, 1e-3


class Core:
    """A core whose speed is a function of time; whatever runs on it takes its time times that."""

    def __init__(self, slowness: Callable[[float], float]) -> None:
        self.now, self._slowness = 0.0, slowness

    def run(self, seconds: float) -> float:
        taken = seconds * self._slowness(self.now)
        self.now += taken
        return taken

    def speed(self) -> CoreSpeed:
        return CoreSpeed(lambda: self.now, lambda: self.run(PROBE_S))

    def timer(self, call: Call) -> Timing:
        taken = self.run(CALL_S)
        return Timing(taken, taken)


def _clock(monkeypatch: pytest.MonkeyPatch, core: Core) -> None:
    monkeypatch.setattr(kernel_timing.time, "perf_counter", lambda: core.now)


def _shared_in(low: float, high: float) -> Callable[[float], float]:
    return lambda t: 1.4 if low <= t < high else 1.0


def test_calls_on_a_shared_core_are_set_aside_and_the_window_grows_by_their_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    core = Core(_shared_in(0.05, 0.35))
    _clock(monkeypatch, core)
    rule = StoppingRule(0.01, 0.4, 10.0)
    timed = time_calls(core.timer, lambda: None, rule, core.speed())
    assert np.allclose(timed.device_s, CALL_S)
    assert timed.window_s > 0.4 + 0.3
    assert timed.shared_share == pytest.approx(0.3 / 1.4 / (timed.window_s - 0.3 + 0.3 / 1.4), rel=0.1)
    row, warnings = timed.metrics(rule)
    assert row["decode_s"] == pytest.approx(CALL_S)
    assert row["core_shared_share"] == timed.shared_share
    assert warnings == []


def test_without_probes_the_same_core_gives_a_median_between_the_two(monkeypatch: pytest.MonkeyPatch) -> None:
    core = Core(_shared_in(0.0, 0.35))
    _clock(monkeypatch, core)
    timed = time_calls(core.timer, lambda: None, StoppingRule(0.01, 0.4, 0.45))
    assert timed.metrics(StoppingRule(0.01, 0.4, 0.45))[0]["decode_s"] == pytest.approx(1.4 * CALL_S)
    assert timed.shared_share is None


def test_slower_calls_on_a_quiet_core_all_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """What decides is the probe: a kernel that has become slower is not set aside."""
    core = Core(lambda t: 1.0)
    _clock(monkeypatch, core)
    factors = iter([1.0, 3.0] * 1_000)

    def timer(call: Call) -> Timing:
        taken = core.run(CALL_S * next(factors))
        return Timing(taken, taken)

    timed = time_calls(timer, lambda: None, StoppingRule(1e-6, 0.1, 0.2), core.speed())
    assert timed.shared_share == 0.0
    assert set(np.round(timed.device_s / CALL_S, 9)) == {1.0, 3.0}


def test_a_core_that_is_shared_to_the_end_stops_at_the_limit_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    core = Core(_shared_in(0.06, np.inf))
    _clock(monkeypatch, core)
    rule = StoppingRule(0.01, 0.3, 0.6)
    timed = time_calls(core.timer, lambda: None, rule, core.speed())
    assert 0.6 <= timed.window_s < 0.61
    assert MIN_CALLS <= len(timed.device_s) <= 60
    assert np.allclose(timed.device_s, CALL_S)
    assert [warning.name for warning in timed.metrics(rule)[1]] == ["core_shared"]


def test_with_too_few_quiet_calls_all_of_them_count(monkeypatch: pytest.MonkeyPatch) -> None:
    core = Core(_shared_in(0.01, np.inf))
    _clock(monkeypatch, core)
    speed = core.speed()
    for _ in range(50):
        speed.probe()  # quiet ones, from the cases before
    core.now = 0.01
    timed = time_calls(core.timer, lambda: None, StoppingRule(0.01, 0.05, 0.1), speed)
    assert timed.shared_share == 1.0
    assert np.allclose(timed.device_s, 1.4 * CALL_S)


def test_a_call_is_judged_by_the_probes_on_both_sides() -> None:
    core = Core(_shared_in(10 * CALL_S, 20 * CALL_S))
    speed = core.speed()
    probed, shared = Probed(speed), []
    for _ in range(40):
        shared.append(10 * CALL_S <= core.now < 20 * CALL_S)
        core.run(CALL_S)
        probed.after_call()
    found = probed.slow()
    assert found[shared].all()
    assert found.sum() <= sum(shared) + 2


def test_probes_are_far_enough_apart_to_cost_little() -> None:
    core = Core(lambda t: 1.0)
    speed = core.speed()
    probed, calls = Probed(speed), 0
    while core.now < 1.0:
        core.run(20e-6)
        probed.after_call()
        calls += 1
    assert 1.0 - calls * 20e-6 < 1.5 * PROBE_S / EVERY_S


def test_the_real_loop_takes_microseconds_and_the_real_clock_moves() -> None:
    speed = CoreSpeed()
    assert speed.usual_s == float("inf")
    found = [speed.probe() for _ in range(50)]
    assert min(found) > 0
    assert speed.usual_s <= float(np.median(found))
    assert core_speed.SLOW * speed.usual_s > min(found)
