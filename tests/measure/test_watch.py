"""Machines that throttle, vanish and lie: what is read of them, what is believed, what is measured again."""

from __future__ import annotations

import itertools
import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kvbench.measure.gpu_watch import GpuReading, clock_is_steady, condense
from kvbench.measure.host_watch import HostCounters, difference, read_counters
from kvbench.measure.redo import LIMITS, Observer, RedoBudget, disturbances
from kvbench.measure.warnings import RowWarning, text
from kvbench.measure.watch import Observed, Watch
from tests.devices.fakes import FakeNvml, fake_host

STAT = "cpu  1 1 1 1 1 1 1 1 0 0\ncpu0 {busy} 0 0 5000 0 0 0 {steal} 0 0\ncpu1 {busy} 0 0 5000 0 0 0 {steal} 0 0\n"


def _counting(start: int, step: int) -> Callable[[], int]:
    counter = itertools.count(start, step)
    return lambda: next(counter)


def _observed(nvml: Any, tmp_path: Path, readings: int = 3) -> Observed:
    """A window in which the GPU is read so many times."""
    with Watch("cuda", host=fake_host(tmp_path), nvml_module=nvml, interval_s=60.0) as watch, watch.window() as window:
        for _ in range(readings - 2):
            watch._read()
    return window.observed


def _names(warnings: list[RowWarning]) -> list[str]:
    return [warning.name for warning in warnings]


def test_m40_energy_is_the_difference_of_the_counter_and_joules_per_output_token(tmp_path: Path) -> None:
    """The counter stands in millijoules; at readings 1, 2, 3 it says 1,000, 1,500 and 2,000 J."""
    nvml = FakeNvml(nvmlDeviceGetTotalEnergyConsumption=_counting(1_000_000, 500_000))
    row = _observed(nvml, tmp_path).columns(output_tokens=50)
    assert (row["energy_j"], row["energy_per_output_token_j"]) == (1000.0, 20.0)


@pytest.mark.parametrize("tokens", [0, None])
def test_m40_without_output_tokens_there_are_no_joules_per_token(tmp_path: Path, tokens: int | None) -> None:
    nvml = FakeNvml(nvmlDeviceGetTotalEnergyConsumption=_counting(0, 1000))
    assert "energy_per_output_token_j" not in _observed(nvml, tmp_path).columns(tokens)


def test_m40_a_card_without_a_counter_has_no_energy(tmp_path: Path) -> None:
    row = _observed(FakeNvml(), tmp_path).columns(output_tokens=50)
    assert row["energy_j"] is None
    assert row["power_mean_w"] == 90.0
    assert "energy_per_output_token_j" not in row


@pytest.mark.parametrize(
    "counts", [[5000, 4000, 6000], [5000, 7000, 3000], [9000, 8000, 7000]], ids=["middle", "end", "always"]
)
def test_m40_a_counter_that_goes_backwards_gives_no_energy_and_is_said(tmp_path: Path, counts: list[int]) -> None:
    rest = iter(counts)
    gpu = _observed(FakeNvml(nvmlDeviceGetTotalEnergyConsumption=lambda: next(rest)), tmp_path).gpu
    assert gpu is not None
    assert gpu.energy_j is None
    assert _names(list(gpu.doubts)) == ["energy_counter_odd"]
    assert "not believed" in text(*gpu.doubts[0])


def test_m40_a_counter_that_stands_while_power_flows_is_not_believed() -> None:
    readings = [GpuReading(t, power_w=300.0, energy_j=77.0) for t in (0.0, 1.0, 2.0)]
    assert (condense(readings).energy_j, _names(list(condense(readings).doubts))) == (None, ["energy_counter_odd"])


@pytest.mark.parametrize("lie", [math.nan, math.inf, -5, "12", None, True, [], 10**30, 1.5], ids=repr)
@pytest.mark.parametrize(
    ("reading", "column"),
    [
        ("nvmlDeviceGetClockInfo", "sm_clock_mean_hz"),
        ("nvmlDeviceGetPowerUsage", "power_mean_w"),
        ("nvmlDeviceGetTemperature", "temperature_max_c"),
        ("nvmlDeviceGetTotalEnergyConsumption", "energy_j"),
    ],
)
def test_a_reading_that_cannot_be_is_none(tmp_path: Path, reading: str, column: str, lie: Any) -> None:
    found = _observed(FakeNvml(**{reading: lambda: lie}), tmp_path).columns()[column]
    is_possible_cold = column == "temperature_max_c" and lie == -5
    assert found == (-5.0 if is_possible_cold else None)


def test_a_throttled_gpu_is_told_with_share_reason_and_lowest_clock(tmp_path: Path) -> None:
    masks, clocks = iter([0x0, 0x24, 0x1, 0x4]), itertools.cycle([1980, 2600, 1200, 2600, 1980, 2600, 1500, 2600])
    nvml = FakeNvml(
        nvmlDeviceGetCurrentClocksThrottleReasons=lambda: next(masks), nvmlDeviceGetClockInfo=lambda: next(clocks)
    )
    observed = _observed(nvml, tmp_path, readings=4)
    (warning,) = (w for w in disturbances(observed) if w.name == "throttled")
    assert warning.numbers["share"] == 0.5
    assert warning.numbers["reasons"] == ["sw_power_cap", "sw_thermal_slowdown"]
    assert warning.numbers["sm_clock_min_hz"] == 1.2e9
    assert "50%" in text(*warning)


@pytest.mark.parametrize("mask", [0x0, 0x1, 0x2, 0x10, 0x100])
def test_an_idle_or_locked_clock_is_no_throttling(tmp_path: Path, mask: int) -> None:
    observed = _observed(FakeNvml(nvmlDeviceGetCurrentClocksThrottleReasons=mask), tmp_path)
    assert "throttled" not in _names(disturbances(observed))


def test_a_gpu_that_vanishes_in_mid_run_leaves_what_was_read_and_says_so(tmp_path: Path) -> None:
    """The first reading answers; then every call raises."""
    calls = FakeNvml(nvmlDeviceGetTotalEnergyConsumption=5000)
    _observed(calls, tmp_path, readings=2)
    per_reading = (calls.calls - 5) // 2
    observed = _observed(
        FakeNvml(nvmlDeviceGetTotalEnergyConsumption=5000, vanish_after=5 + per_reading), tmp_path, readings=5
    )
    assert observed.gpu is not None
    assert (observed.gpu.answered, observed.gpu.readings) == (1, 5)
    assert observed.gpu.power_mean_w == 90.0
    assert observed.gpu.energy_j is None
    assert "sensor_lost" in _names(list(observed.gpu.doubts))


@pytest.mark.parametrize("nvml", [FakeNvml(failing={"nvmlInit"}), FakeNvml(gpus=0), SimpleNamespace()])
def test_without_a_library_a_driver_or_a_gpu_nothing_stops(tmp_path: Path, nvml: Any) -> None:
    observed = _observed(nvml, tmp_path)
    assert observed.gpu is None
    assert "power_mean_w" not in observed.columns(3)


def test_foreign_processes_are_those_that_are_not_ours(tmp_path: Path) -> None:
    def count(*pids: int) -> int | None:
        processes = [SimpleNamespace(pid=pid) for pid in pids]
        gpu = _observed(FakeNvml(nvmlDeviceGetComputeRunningProcesses=processes), tmp_path).gpu
        return gpu.foreign_processes if gpu else None

    own = os.getpid()
    assert (count(), count(own), count(own, 1, 2)) == (0, 0, 2)
    assert (count(999_999_999), count(999_999_998, 999_999_999)) == (0, 1)  # a container numbers them otherwise


def test_the_gpu_is_found_by_the_id_that_cuda_knows(tmp_path: Path) -> None:
    nvml = FakeNvml(gpus=2, nvmlDeviceGetUUID="GPU-aa-bb")
    for uuid in ("aa-bb", "GPU-AA-BB", "unknown", None):
        with Watch("cuda", uuid, host=fake_host(tmp_path), nvml_module=nvml, interval_s=60.0) as watch:
            assert watch._sensor is not None
    assert nvml.opened == 0


def test_a_clock_is_steady_when_its_last_readings_agree_or_none_can_be_read() -> None:
    def steady(*clocks: float | None) -> bool:
        return clock_is_steady([GpuReading(0.0, sm_clock_hz=clock) for clock in clocks])

    assert steady(1e9, 1.98e9, 1.985e9, 1.98e9)
    assert not steady(1.98e9, 1.98e9, 1.5e9)
    assert not steady(1.98e9, 1.98e9)
    assert steady(None, None)


def test_the_thread_samples_by_itself_and_ends_with_the_case(tmp_path: Path) -> None:
    nvml = FakeNvml()
    with Watch("cuda", host=fake_host(tmp_path), nvml_module=nvml, interval_s=0.001) as watch:
        deadline = time.monotonic() + 10
        while len(watch._gpu) < 3 and time.monotonic() < deadline:
            time.sleep(0.005)
    assert len(watch._gpu) >= 3
    assert nvml.opened == 0
    calls = nvml.calls
    time.sleep(0.02)
    assert nvml.calls == calls


def _counters(**changes: Any) -> HostCounters:
    values = {
        "t_s": 0.0, "own_cpu_s": 0.0, "involuntary_switches": 0, "major_faults": 0, "busy_s": 0.0, "stolen_s": 0.0,
        "swapped_pages": 0,
    }  # fmt: skip
    return HostCounters(**{**values, **changes})


def test_what_others_took_is_what_the_cpus_did_less_what_we_did() -> None:
    """Two CPUs for 10 s: busy 13 s of 20, 7 s of them ours; 1 s stolen."""
    used = difference(
        _counters(), _counters(t_s=10.0, own_cpu_s=7.0, busy_s=13.0, stolen_s=1.0, involuntary_switches=30), cpus=2
    )
    assert used.foreign_cpu_share == pytest.approx(6 / 20)
    assert used.steal_share == pytest.approx(1 / 20)
    assert used.involuntary_switches == 30


def test_counters_of_the_system_are_read_for_our_cpus_only(tmp_path: Path) -> None:
    stat = STAT.format(busy=1000, steal=50) + "cpu7 99999 0 0 0 0 0 0 99999 0 0\n"
    host = fake_host(tmp_path, files={"proc/stat": stat, "proc/vmstat": "pswpin 3\npswpout 4\n"})
    found = read_counters(host)
    tick = os.sysconf("SC_CLK_TCK")
    assert (found.busy_s, found.stolen_s, found.swapped_pages) == (2000 / tick, 100 / tick, 7)


@pytest.mark.parametrize("text_of", ["", "cpu0 nonsense", "cpu0 1 2 3", "cpu9 1 1 1 1 1 1 1 1 1 1", "\x00\xff"])
def test_a_system_that_does_not_tell_gives_none(tmp_path: Path, text_of: str) -> None:
    found = read_counters(fake_host(tmp_path, files={"proc/stat": text_of, "proc/vmstat": text_of}))
    assert (found.busy_s, found.stolen_s, found.swapped_pages) == (None, None, None)
    used = difference(found, found, cpus=2)
    assert (used.foreign_cpu_share, used.steal_share, used.swapped_bytes) == (None, None, None)


def test_counters_that_go_backwards_tell_nothing() -> None:
    used = difference(
        _counters(busy_s=100.0, stolen_s=5.0, swapped_pages=9, involuntary_switches=5), _counters(t_s=1.0), cpus=1
    )
    assert (used.foreign_cpu_share, used.steal_share, used.swapped_bytes) == (None, None, None)
    assert used.involuntary_switches == 0


def _seen(**host: Any) -> Observed:
    quiet = {"t_s": 1.0, "own_cpu_s": 1.0, "busy_s": 1.0}
    return Observed(difference(_counters(), _counters(**{**quiet, **host}), cpus=1), None, None)


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"busy_s": 1.5}, "foreign_process"),
        ({"stolen_s": 0.1}, "cpu_stolen"),
        ({"involuntary_switches": 201}, "descheduled"),
        ({"major_faults": 11}, "page_faults"),
        ({"swapped_pages": 1}, "swapped"),
    ],
)
def test_each_disturbance_of_a_cpu_is_a_warning_with_its_numbers(changes: dict[str, Any], name: str) -> None:
    assert disturbances(_seen()) == []
    (warning,) = disturbances(_seen(**changes))
    assert warning.name == name
    assert "limit" in warning.numbers
    assert text(*warning) != name


class _Scripted:
    """A watch whose windows look as told."""

    def __init__(self, *seen: Observed) -> None:
        self._seen = iter(seen)

    def window(self) -> Any:
        observed = next(self._seen)
        return _Window(observed)


class _Window:
    def __init__(self, observed: Observed) -> None:
        self.observed = observed

    def __enter__(self) -> _Window:
        return self

    def __exit__(self, *_: object) -> None:
        return None


NOISY, WORSE = _seen(busy_s=1.5), _seen(busy_s=1.5, stolen_s=0.5)


def _taken(*seen: Observed, budget: int = 1) -> tuple[Any, list[str], RedoBudget]:
    said: list[str] = []
    left = RedoBudget(budget)
    values = itertools.count()
    observer = Observer(_Scripted(*seen), left, said.append)  # type: ignore[arg-type]
    return observer.take(lambda _: next(values), lambda: None), said, left


def test_a_quiet_sample_is_taken_once_and_has_no_story() -> None:
    taken, said, left = _taken(_seen())
    assert (taken.value, taken.warnings, taken.extra, said, left.left) == (0, [], {}, [], 1)
    assert taken.columns()["attempts"] == 1


def test_a_disturbed_sample_is_discarded_and_taken_again_and_the_numbers_are_logged_and_kept() -> None:
    taken, said, left = _taken(NOISY, _seen())
    assert (taken.value, taken.warnings, left.left) == (1, [], 0)
    assert "others took 50% of the CPU time (limit 15%)" in said[0]
    first, second = taken.extra["attempts"]
    assert (first["kept"], second["kept"]) == (False, True)
    assert first["disturbed"][0]["numbers"] == {"cpu_share": pytest.approx(0.5), "limit": LIMITS["foreign_cpu"]}
    assert taken.columns()["attempts"] == 2


def test_beyond_the_budget_a_disturbed_sample_stays_and_says_so() -> None:
    taken, said, _ = _taken(NOISY, budget=0)
    assert (taken.value, said) == (0, [])
    assert _names(taken.warnings) == ["foreign_process", "not_redone"]
    assert "the budget is spent" in text(*taken.warnings[1])


@pytest.mark.parametrize(("seen", "value"), [((NOISY, WORSE), 0), ((WORSE, NOISY), 1), ((NOISY, NOISY), 1)])
def test_of_two_disturbed_attempts_the_less_disturbed_counts_never_the_faster(
    seen: tuple[Observed, Observed], value: int
) -> None:
    taken, _, _ = _taken(*seen)
    assert taken.value == value
    assert "not_redone" not in _names(taken.warnings)


@pytest.mark.parametrize(("share", "cases", "budget"), [(0.2, 18, 4), (0.2, 1, 1), (0.0, 100, 0), (1.0, 3, 3)])
def test_the_budget_is_a_share_of_the_cases_rounded_up(share: float, cases: int, budget: int) -> None:
    found = RedoBudget.of(share, cases)
    assert [found.spend() for _ in range(budget + 2)] == [True] * budget + [False] * 2


def test_what_a_window_raises_passes_through(tmp_path: Path) -> None:
    watch = Watch("cpu", host=fake_host(tmp_path))
    with pytest.raises(KeyError), watch.window():
        raise KeyError("x")
