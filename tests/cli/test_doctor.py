"""`kvbench doctor`: every fault on a fabricated machine is found, with evidence and a remedy."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from kvbench.cli.doctor import doctor
from kvbench.measure.checks import SEVERITIES, Finding, examine
from kvbench.measure.environment import capture
from tests.devices.fakes import FakeNvml, fake_host

HEALTHY = {
    "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "performance",
    "proc/loadavg": "0.00 0.00 0.00 1/100 42",
    "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never",
}


def _findings(root: Path, files: dict[str, str], gpu: dict[str, Any] | None = None, **host: Any) -> list[Finding]:
    module = FakeNvml(gpus=0) if gpu is None else FakeNvml(nvmlDeviceGetDefaultApplicationsClock=1980, **gpu)
    state = capture(host=fake_host(root, files={**HEALTHY, **files}, **host), nvml_module=module)
    return examine(state, root / "results")


def _says(findings: list[Finding], severity: str, text: str) -> bool:
    return any(f.severity == severity and text in f.evidence and (f.remedy or severity == "ok") for f in findings)


@pytest.mark.parametrize(
    ("files", "severity", "text"),
    [
        ({"proc/loadavg": "1.50 1.0 1.0 1/100 42"}, "warning", "load average 1.50"),
        ({"sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "powersave"}, "warning", "governor is powersave"),
        ({"sys/devices/system/cpu/cpufreq/boost": "1"}, "note", "turbo is on"),
        ({"sys/fs/cgroup/cpu.max": "100000 100000"}, "warning", "allows 1 of 2 cores"),
        ({"sys/kernel/mm/transparent_hugepage/enabled": "[always] madvise never"}, "note", "always"),
        (
            {"proc/meminfo": "MemTotal: 100 kB\nMemAvailable: 90 kB\nSwapTotal: 8192 kB\nSwapFree: 4096 kB"},
            "warning",
            "4.00 MiB swapped",
        ),
        ({"proc/meminfo": "MemTotal: 1000 kB\nMemAvailable: 100 kB"}, "warning", "available"),
        ({}, "note", "2 physical cores"),
    ],
)
def test_a_fault_of_the_host_is_found(files: dict[str, str], severity: str, text: str, tmp_path: Path) -> None:
    assert _says(_findings(tmp_path, files), severity, text)


def test_a_healthy_host_has_no_warning(tmp_path: Path) -> None:
    found = _findings(tmp_path, {}, logical=8)
    assert not [f for f in found if f.severity in ("warning", "problem")]
    assert any("the CPU (Testium 9000) is the device" in f.evidence for f in found)


def test_hyperthreads_are_noted(tmp_path: Path) -> None:
    assert _says(_findings(tmp_path, {}, logical=8, threads_per_core=2), "note", "8 CPUs on 4 cores")


@pytest.mark.parametrize(
    ("gpu", "severity", "text"),
    [
        ({"nvmlDeviceGetPersistenceMode": 0}, "warning", "persistence mode is off"),
        ({"nvmlDeviceGetCurrentClocksThrottleReasons": 0x21}, "warning", "sw_thermal_slowdown"),
        ({"nvmlDeviceGetTemperature": 88}, "warning", "88 °C"),
        ({"nvmlDeviceGetComputeRunningProcesses": [SimpleNamespace(pid=4711)]}, "warning", "4711"),
        ({"nvmlDeviceGetMemoryInfo": SimpleNamespace(total=1 << 40, used=9 << 30)}, "warning", "9.00 GiB in use"),
        ({"nvmlDeviceGetEnforcedPowerLimit": 300_000}, "note", "300 W is below the default 700 W"),
        ({}, "note", "clocks are not known to be locked"),
        ({}, "note", "ECC is on"),
    ],
)
def test_a_fault_of_the_gpu_is_found(gpu: dict[str, Any], severity: str, text: str, tmp_path: Path) -> None:
    assert _says(_findings(tmp_path, {}, gpu), severity, text)


def test_idle_is_no_fault(tmp_path: Path) -> None:
    quiet = {"nvmlDeviceGetMemoryInfo": SimpleNamespace(total=1 << 40, used=1 << 20)}
    found = _findings(tmp_path, {}, quiet)
    assert not [f for f in found if f.severity == "warning" and f.check.startswith("gpu")]


def test_locked_clocks_are_believed(tmp_path: Path) -> None:
    found = _findings(tmp_path, {}, {"nvmlDeviceGetApplicationsClock": 1500})
    assert not any("known to be locked" in f.evidence for f in found)


def test_a_results_folder_that_cannot_be_written_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    state = capture(host=fake_host(tmp_path / "m"), nvml_module=FakeNvml(gpus=0))
    found = examine(state, tmp_path / "file" / "results")
    assert found[0].severity == "problem"
    assert "--out" in found[0].remedy


def test_a_cache_that_cannot_be_written_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "file" / "cache"))
    found = _findings(tmp_path / "m", {})
    assert any(f.check == "kernel cache" and f.severity == "warning" for f in found)


def test_thread_variables_that_disagree_with_the_cores_are_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "64")
    monkeypatch.setenv("NUMBA_DISABLE_JIT", "1")
    found = _findings(tmp_path, {})
    assert _says(found, "note", "OMP_NUM_THREADS=64")
    assert _says(found, "problem", "NUMBA_DISABLE_JIT")


def test_findings_come_worst_first(tmp_path: Path) -> None:
    order = [SEVERITIES.index(f.severity) for f in _findings(tmp_path, {}, {})]
    assert order == sorted(order)


def test_the_command_exits_0_and_every_format_says_the_same(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    out = ["--out", str(tmp_path / "file" / "[bold]x")]
    results = {form: CliRunner().invoke(doctor, [*out, "--format", form]) for form in ("table", "json", "csv", "md")}
    assert {r.exit_code for r in results.values()} == {0}
    document = json.loads(results["json"].stdout)
    assert document["findings"][0]["severity"] == "problem"
    assert set(document["machine"]) == {"controlled", "environment", "volatile"}
    rows = list(csv.DictReader(io.StringIO(results["csv"].stdout)))
    assert {row["check"] for row in rows} == {f["check"] for f in document["findings"]}
    assert "[bold]x" in results["table"].stdout.replace("\n", "")
    assert results["md"].stdout.count("\n| ") >= len(rows)
