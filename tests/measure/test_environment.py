"""What the manifest keeps of a machine: complete, JSON-able, and never the reason that a run fails."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbench.devices.host import Host
from kvbench.measure.environment import capture, ranges
from kvbench.measure.software import PACKAGES, checkout, location_variables, variables, versions
from tests.devices.fakes import FakeNvml, fake_host

NVML_READINGS = sorted(set(FakeNvml()._values) - {"nvmlInit", "nvmlShutdown"})


def _keys(value: Any, path: str = "") -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield f"{path}.{key}"
            yield from _keys(inner, f"{path}.{key}")
    elif isinstance(value, list):
        for inner in value:
            yield from _keys(inner, f"{path}[]")


def test_three_classes_and_plain_json(tmp_path: Path) -> None:
    found = capture(host=fake_host(tmp_path), nvml_module=FakeNvml())
    assert list(found) == ["controlled", "environment", "volatile"]
    assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_gpu_settings_are_controlled_and_readings_volatile(tmp_path: Path) -> None:
    found = capture(host=fake_host(tmp_path), nvml_module=FakeNvml(nvmlDeviceGetDefaultApplicationsClock=1980))
    gpu, now = found["controlled"]["gpus"][0], found["volatile"]["gpus"][0]
    assert (gpu["name"], gpu["uuid"], gpu["sm_count"], gpu["memory_bytes"]) == (
        "NVIDIA H200", "GPU-1234", 132, 143_771 << 20,
    )  # fmt: skip
    assert (gpu["mig"], gpu["ecc"], gpu["persistence_mode"], gpu["compute_mode"]) == ("off", "on", "on", "default")
    assert (gpu["power_limit_w"], gpu["application_sm_clock_hz"], gpu["clocks_locked"]) == (700, 1.98e9, False)
    assert gpu["nvlinks"] == 4
    assert (now["sm_clock_hz"], now["temperature_c"], now["throttle_reasons"]) == (3.45e8, 40, ["idle"])
    assert found["controlled"]["driver"] == {"version": "570.1", "cuda": "12.8"}
    assert found["environment"]["gpus"][0] == {"vbios": "96.00", "pcie_max_generation": 5, "pcie_max_width": 16}


@pytest.mark.parametrize("reading", NVML_READINGS)
def test_one_failing_reading_is_null_and_no_key_goes_missing(reading: str, tmp_path: Path) -> None:
    host = fake_host(tmp_path)
    whole = capture(host=host, nvml_module=FakeNvml())
    broken = capture(host=host, nvml_module=FakeNvml(failing={reading}))
    json.dumps(broken, allow_nan=False)
    if reading not in ("nvmlDeviceGetCount", "nvmlDeviceGetHandleByIndex"):
        assert set(_keys(broken)) == set(_keys(whole))


@pytest.mark.parametrize("calls", range(0, 40, 3))
def test_a_library_that_vanishes_in_the_middle_breaks_nothing(calls: int, tmp_path: Path) -> None:
    json.dumps(capture(host=fake_host(tmp_path), nvml_module=FakeNvml(vanish_after=calls)), allow_nan=False)


@given(st.sampled_from(NVML_READINGS), st.none() | st.booleans() | st.floats() | st.text(max_size=3) | st.just([]))
def test_a_reading_of_the_wrong_type_breaks_nothing(reading: str, value: Any) -> None:
    module = FakeNvml(**{reading: value})
    json.dumps(capture(host=Host(root=Path("/nowhere")), nvml_module=module), allow_nan=False)


def test_the_library_is_closed_again(tmp_path: Path) -> None:
    module = FakeNvml(nvmlDeviceGetComputeRunningProcesses=[SimpleNamespace(pid=7), SimpleNamespace(pid=None)])
    found = capture(host=fake_host(tmp_path), nvml_module=module)
    assert module.opened == 0
    assert found["volatile"]["gpus"][0]["process_ids"] == [7]


def test_without_library_or_files_everything_is_there_and_null(tmp_path: Path) -> None:
    bare = capture(host=Host(root=tmp_path / "none"), nvml_module=FakeNvml(failing={"nvmlInit"}))
    full = capture(host=fake_host(tmp_path / "full"), nvml_module=FakeNvml(gpus=0))
    assert set(_keys(bare)) == set(_keys(full))
    assert bare["controlled"]["cpu"]["governor"] is None
    assert bare["volatile"]["host"]["load_average"] is None


def test_cpu_settings_are_read(tmp_path: Path) -> None:
    cpu0, cpu1 = "sys/devices/system/cpu/cpu0/cpufreq", "sys/devices/system/cpu/cpu1/cpufreq"
    files = {
        f"{cpu0}/scaling_governor": "performance",
        f"{cpu1}/scaling_governor": "powersave",
        f"{cpu0}/cpuinfo_max_freq": "3700000",
        f"{cpu1}/cpuinfo_max_freq": "3700000",
        f"{cpu0}/scaling_cur_freq": "2400000",
        "sys/devices/system/cpu/intel_pstate/no_turbo": "1",
        "sys/devices/system/cpu/smt/active": "1",
        "sys/devices/system/node/online": "0-1,4",
        "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never",
        "proc/loadavg": "0.50 0.40 0.30 1/100 42",
        "proc/self/status": "Name: x\nMems_allowed_list:\t0-1\n",
    }
    found = capture(host=fake_host(tmp_path, files=files), nvml_module=FakeNvml(gpus=0))
    cpu = found["controlled"]["cpu"]
    assert (cpu["governor"], cpu["turbo"], cpu["smt"]) == ("performance/powersave", "off", "on")
    assert (cpu["max_clock_hz"], cpu["numa_nodes"], cpu["numa_memory_nodes"]) == ([3.7e9], 3, "0-1")
    assert (cpu["transparent_huge_pages"], cpu["affinity"]) == ("madvise", "0-1")
    assert found["volatile"]["host"] == {
        "load_average": [0.5, 0.4, 0.3], "memory_available_bytes": 4 << 30, "swap_used_bytes": 0,
        "cpu_clock_hz": [2.4e9],
    }  # fmt: skip


GARBLE = st.text(max_size=40) | st.text("0123456789²٣ -,./kB:\nMemTotal", max_size=40)


@settings(max_examples=300, deadline=None)
@given(GARBLE, GARBLE)
def test_garbled_system_files_break_nothing(text: str, other: str) -> None:
    class Garbled(Host):
        def text(self, path: str) -> str | None:
            return text if len(path) % 2 else other

    json.dumps(capture(host=Garbled(), nvml_module=FakeNvml(gpus=0)), allow_nan=False)


@given(st.frozensets(st.integers(0, 300)))
def test_ranges_of_cpus_can_be_read_back(cpus: frozenset[int]) -> None:
    spans = [part.split("-") for part in ranges(cpus).split(",") if part]
    back = [n for span in spans for n in range(int(span[0]), int(span[-1]) + 1)]
    assert back == sorted(cpus)


def test_variables_that_matter_are_kept_and_places_apart() -> None:
    environ = {
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", "OMP_NUM_THREADS": "2", "NUMBA_CACHE_DIR": "/x",
        "KMP_AFFINITY": "compact", "LD_PRELOAD": "libjemalloc.so", "PATH": "/bin", "SECRET_TOKEN": "no",
        "CUDA_HOME": "/usr/local/cuda", "TRITON_INTERPRET": "1", "NCCL_DEBUG": "INFO", "MKL_NUM_THREADS": "2",
    }  # fmt: skip
    kept, places = variables(environ), location_variables(environ)
    assert set(places) == {"NUMBA_CACHE_DIR", "CUDA_HOME"}
    assert set(kept) == set(environ) - set(places) - {"PATH", "SECRET_TOKEN"}


def test_versions_are_those_of_the_installed_distributions() -> None:
    import numpy

    found = versions()
    assert found["numpy"] == numpy.__version__
    assert set(PACKAGES) < set(found)
    assert found["python"] == ".".join(map(str, sys.version_info[:3]))


def _git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.invalid", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", "-C", str(folder), *identity, *arguments], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def test_the_checkout_says_its_commit_and_whether_it_is_dirty(tmp_path: Path) -> None:
    assert checkout(tmp_path) == {"git_commit": None, "git_dirty": None}
    _git(tmp_path, "init", "-q")
    (tmp_path / "a").write_text("1")
    _git(tmp_path, "add", "a")
    _git(tmp_path, "commit", "-q", "-m", "a")
    commit = _git(tmp_path, "rev-parse", "HEAD")
    assert checkout(tmp_path) == {"git_commit": commit, "git_dirty": False}
    (tmp_path / "untracked").write_text("1")
    assert checkout(tmp_path)["git_dirty"] is False
    (tmp_path / "a").write_text("2")
    assert checkout(tmp_path) == {"git_commit": commit, "git_dirty": True}


def test_a_broken_checkout_is_unknown(tmp_path: Path) -> None:
    (tmp_path / ".git").write_text("gitdir: nowhere")
    assert checkout(tmp_path) == {"git_commit": None, "git_dirty": None}


BLOCKED = """
import sys
for name in ("torch", "numba", "pandas", "pyarrow"): sys.modules[name] = None
import kvbench.geometry.sizing, kvbench.geometry.resolve, kvbench.devices.detect
from kvbench.measure.environment import capture
from click.testing import CliRunner
from kvbench.cli.size import size
from kvbench.cli.doctor import doctor
assert capture()["controlled"]["versions"]["torch"]
for command, arguments in ((size, ["--model", "llama-3.1-8b", "--gpu", "h200"]), (doctor, [])):
    result = CliRunner().invoke(command, arguments)
    assert result.exit_code == 0, result.output
"""


def test_geometry_devices_size_and_doctor_need_no_torch() -> None:
    done = subprocess.run([sys.executable, "-c", BLOCKED], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_manifest_keeps_the_classes_of_the_captured_machine() -> None:
    pytest.importorskip("pyarrow")
    from kvbench.store.manifest import build_manifest

    found = capture()
    manifest = build_manifest({"run_id": "r"}, environment=found)
    assert manifest["controlled"]["system"] == found["controlled"]
    assert manifest["environment"] == found["environment"]
    assert manifest["volatile"]["readings"] == found["volatile"]
