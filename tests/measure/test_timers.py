"""What is inside a timed window and what is not; memory that is handed out is poisoned."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from kvbench.measure import timers
from kvbench.measure.kernel_timing import CURVE_POINTS, WarmUp, time_calls, warm_up
from kvbench.measure.precision import MIN_CALLS, StoppingRule
from kvbench.measure.timers import CacheFlush, CudaTimer, HostTimer, Timing, poisoned_memory, rotating, timer_for
from tests.devices.fakes import fake_host


def test_the_flush_runs_before_the_call_and_outside_its_window(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, events = [0.0], []

    def pass_time(name: str, seconds: float) -> None:
        events.append(name)
        clock[0] += seconds

    monkeypatch.setattr(timers.time, "perf_counter", lambda: clock[0])
    timer = HostTimer(lambda: pass_time("flush", 100.0))
    assert timer(lambda: pass_time("call", 2.0)) == Timing(2.0, 2.0)
    assert events == ["flush", "call"]


@pytest.mark.parametrize("has_flush", [True, False])
def test_a_gpu_has_work_in_its_queue_while_the_call_is_launched(
    monkeypatch: pytest.MonkeyPatch, has_flush: bool
) -> None:
    """A flush alone may be over before Python has launched anything: the spin stands behind it, before the event."""
    events: list[str] = []

    class Event:
        def __init__(self, enable_timing: bool) -> None: ...

        def record(self) -> None:
            events.append("event")

        def synchronize(self) -> None: ...

        def elapsed_time(self, end: object) -> float:
            return 2.0

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: events.append("spin"), raising=False)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    timer = CudaTimer((lambda: events.append("flush")) if has_flush else None)
    assert timer(lambda: events.append("call")).device_s == pytest.approx(2e-3)
    before = ["flush", "spin"] if has_flush else ["spin"]
    assert events == [*before, "event", "call", "event", *before, "call"]


def test_a_flush_writes_more_than_the_last_level_cache_holds(tmp_path: Path) -> None:
    flush = CacheFlush("cpu", cache_bytes=1 << 20)
    flush()
    assert flush.buffer.nbytes == 2 << 20
    assert (flush.buffer == 1).all()
    sizes = {f"sys/devices/system/cpu/cpu0/cache/index{n}/size": s for n, s in enumerate(["32K", "512K", "16M"])}
    assert fake_host(tmp_path, files=sizes).last_level_cache_bytes() == 16 << 20


@pytest.mark.parametrize("text", ["", "nonsense", "12", "-1K", "99999999999K"])
def test_a_cache_of_unknown_size_is_unknown(tmp_path: Path, text: str) -> None:
    host = fake_host(tmp_path, files={"sys/devices/system/cpu/cpu0/cache/index0/size": text})
    assert host.last_level_cache_bytes() is None


def test_only_flushed_buffers_are_flushed(monkeypatch: pytest.MonkeyPatch) -> None:
    flushed: list[int] = []
    monkeypatch.setattr(CacheFlush, "__call__", lambda self: flushed.append(1))
    timer_for("cpu", "hot")(lambda: None)
    assert not flushed
    timer_for("cpu", "l2-flushed")(lambda: None)
    assert flushed


def test_rotation_never_makes_the_same_call_twice_in_a_row() -> None:
    seen: list[int] = []
    call = rotating([lambda n=n: seen.append(n) for n in range(3)])  # type: ignore[misc]
    for _ in range(7):
        call()
    assert seen == [0, 1, 2, 0, 1, 2, 0]


def test_memory_is_poisoned_inside_the_block_and_torch_is_as_before_outside() -> None:
    before = torch.are_deterministic_algorithms_enabled()
    with poisoned_memory():
        assert torch.empty(1000).isnan().all()
        assert torch.empty(3, dtype=torch.int8).tolist() == [127] * 3
    assert torch.are_deterministic_algorithms_enabled() == before
    with pytest.raises(RuntimeError, match="boom"), poisoned_memory():
        raise RuntimeError("boom")
    assert torch.are_deterministic_algorithms_enabled() == before


def _timer_of(times: list[float]) -> timers.Timer:
    rest = iter(times)

    def timer(call: timers.Call) -> Timing:
        device_s = next(rest)
        return Timing(device_s, device_s + 1.0)

    return timer


def test_the_first_launch_is_in_neither_warm_up_nor_window() -> None:
    found = warm_up(_timer_of([99.0] + [1.0] * 100), lambda: None)
    assert (found.first_s, found.is_steady, set(found.times)) == (99.0, True, {1.0})


def test_warm_up_waits_for_the_devices_clock_as_well() -> None:
    answers = iter([False] * 5 + [True])
    found = warm_up(_timer_of([1.0] * 100), lambda: None, lambda: next(answers))
    assert found.calls == 1 + 20 + 5


def test_device_and_host_time_are_both_kept() -> None:
    timed = time_calls(_timer_of([1.0] * 100), lambda: None, StoppingRule(0.01, 0.0, 10.0))
    row, warnings = timed.metrics(StoppingRule(0.01, 0.0, 10.0))
    assert (row["iterations"], row["decode_s"], row["decode_host_s"]) == (MIN_CALLS, 1.0, 2.0)
    assert (row["decode_low_s"], row["decode_high_s"], row["precision_reached"]) == (1.0, 1.0, 0.0)
    assert warnings == []


def test_time_figures_agree_with_numpy_and_doubts_are_said() -> None:
    times = [1.0, 3.0] * 50
    timed = time_calls(_timer_of(times), lambda: None, StoppingRule(1e-3, 0.0, 0.0))
    row, warnings = timed.metrics(StoppingRule(1e-3, 0.0, 0.0))
    taken = np.array(times[: row["iterations"]])
    assert row["decode_s"] == np.median(taken)
    assert row["decode_mean_s"] == taken.mean()
    assert row["decode_mad_s"] == np.median(np.abs(taken - np.median(taken)))
    assert [warning.name for warning in warnings] == ["imprecise", "bimodal"]


@pytest.mark.parametrize("count", [0, 1, 64, 65, 1000])
def test_the_curve_of_the_warm_up_is_short_and_leaves_nothing_out(count: int) -> None:
    times = [float(n) for n in range(count)]
    curve = WarmUp(9.0, times=times).curve()
    assert len(curve["median_s"]) <= CURVE_POINTS
    pieces = [times[at : at + curve["calls_per_point"]] for at in range(0, count, curve["calls_per_point"])]
    assert curve["median_s"] == [float(np.median(piece)) for piece in pieces]
