"""Device facts against the arithmetic behind them, look-up, and detection on fabricated machines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kvbench.devices.detect import detect
from kvbench.devices.host import Host
from kvbench.devices.lookup import anonymous_device, device_names, known_device
from kvbench.devices.shared_memory import RESERVED_SHARED_BYTES, SHARED_PER_SM_BYTES
from kvbench.devices.table import DEVICES
from kvbench.errors import CannotRunError, UsageError
from tests.devices.fakes import FakeNvml, fake_host

FLOPS_PER_CLOCK_AND_SM = {
    # dense 16-bit tensor operations with float32 accumulation, from the architecture whitepapers
    "H100-SXM": 4096, "H100-PCIe": 4096, "H200": 4096, "A100-40GB": 2048, "A100-80GB": 2048, "A100-80GB-PCIe": 2048,
    "RTX-5090": 512, "RTX-4090": 512, "RTX-3090": 512, "MI300X": 2048,
}  # fmt: skip


@pytest.mark.parametrize("name", FLOPS_PER_CLOCK_AND_SM)
def test_tensor_rate_is_sms_times_clock_times_width(name: str) -> None:
    d = known_device(name)
    assert d.sms is not None
    assert d.tensor_clock_hz is not None
    assert d.bf16_flops == pytest.approx(d.sms * d.tensor_clock_hz * FLOPS_PER_CLOCK_AND_SM[name], rel=0.005)


@pytest.mark.parametrize("device", DEVICES, ids=lambda d: d.name)
def test_fp8_runs_at_twice_16_bits_where_the_hardware_has_it(device: Any) -> None:
    if device.kind == "cuda":
        assert (device.fp8_flops is not None) == (float(device.compute_capability) >= 8.9)
    if device.fp8_flops is not None:
        assert device.fp8_flops == pytest.approx(2 * device.bf16_flops, rel=0.02)


def test_shared_memory_is_known_for_the_compute_capability_of_every_gpu() -> None:
    """CUDA programming guide: 232,448 bytes a block on 9.0 and 10.0, 166,912 on 8.0, 101,376 on 8.6, 8.9 and 12.0."""
    per_block = {"9.0": 232_448, "10.0": 232_448, "8.0": 166_912, "8.6": 101_376, "8.9": 101_376, "12.0": 101_376}
    assert {name: size - RESERVED_SHARED_BYTES for name, size in SHARED_PER_SM_BYTES.items()} == per_block
    assert {device.compute_capability for device in DEVICES if device.kind == "cuda"} == per_block.keys()


@pytest.mark.parametrize("device", DEVICES, ids=lambda d: d.name)
def test_the_driver_reports_about_what_the_datasheet_advertises(device: Any) -> None:
    advertised_gb = float(device.advertised_memory.split()[0])
    assert 0.93 * advertised_gb * 2**30 <= device.memory_bytes <= 1.08 * advertised_gb * 2**30
    assert device.datasheet


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("h200", "H200"), ("H100", "H100-SXM"), ("NVIDIA H100 80GB HBM3", "H100-SXM"),
        ("NVIDIA H100 PCIe", "H100-PCIe"),
        ("NVIDIA A100-SXM4-40GB", "A100-40GB"), ("NVIDIA A100 80GB PCIe", "A100-80GB-PCIe"), ("4090", "RTX-4090"),
        ("NVIDIA GeForce RTX 3090", "RTX-3090"), ("nvidia l40s", "L40S"), ("AMD Instinct MI300X", "MI300X"),
    ],
)  # fmt: skip
def test_names_of_people_and_of_drivers_are_found(typed: str, name: str) -> None:
    assert known_device(typed).name == name


def test_no_two_devices_share_an_alias() -> None:
    for device in DEVICES:
        for alias in (device.name, *device.aliases):
            assert known_device(alias) is device


@pytest.mark.parametrize(("typed", "meant"), [("h20", "H200"), ("rtx4091", "RTX-4090"), ("a100-8gb", "A100-80GB")])
def test_unknown_gpu_says_what_was_meant(typed: str, meant: str) -> None:
    with pytest.raises(UsageError) as caught:
        known_device(typed)
    assert meant in (caught.value.hint or "")


@pytest.mark.parametrize("typed", ["", "[red]", "toaster", "-5GiB", "5 parsecs", "0GiB", "\0"])
def test_hostile_gpu_names_are_one_clear_error(typed: str) -> None:
    with pytest.raises(UsageError):
        known_device(typed)


def test_a_bare_size_is_an_anonymous_device() -> None:
    assert known_device("24GiB").memory_bytes == 24 << 30
    assert anonymous_device(5).memory_bytes == 5
    assert "H200" in device_names()


def test_without_a_gpu_the_cpu_is_the_device(tmp_path: Path) -> None:
    device = detect(host=fake_host(tmp_path), nvml_module=FakeNvml(gpus=0))
    assert (device.name, device.kind, device.cores, device.memory_bytes) == ("Testium 9000", "cpu", 2, 8 << 30)


def test_a_gpu_is_described_by_its_driver_over_the_table(tmp_path: Path) -> None:
    device = detect(host=fake_host(tmp_path), nvml_module=FakeNvml())
    assert (device.kind, device.sms, device.compute_capability) == ("cuda", 132, "9.0")
    assert (device.name, device.memory_bytes) == ("NVIDIA H200", 143_771 << 20)
    assert device.bandwidth_bytes_per_s == 4.8e12
    assert detect("cpu", host=fake_host(tmp_path), nvml_module=FakeNvml()).kind == "cpu"


@pytest.mark.parametrize("fault", ["nvmlInit", "nvmlDeviceGetCount", "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetName"])
def test_a_failing_library_leaves_the_cpu(fault: str, tmp_path: Path) -> None:
    module = FakeNvml(failing={fault})
    assert detect(host=fake_host(tmp_path), nvml_module=module).kind == "cpu"
    with pytest.raises(CannotRunError):
        detect("cuda", host=fake_host(tmp_path), nvml_module=module)


def test_an_unknown_card_is_still_a_device(tmp_path: Path) -> None:
    device = detect(host=fake_host(tmp_path), nvml_module=FakeNvml(name="NVIDIA Toaster"))
    assert (device.name, device.bandwidth_bytes_per_s, device.sms) == ("NVIDIA Toaster", None, 132)


def test_hyperthreads_are_counted_once(tmp_path: Path) -> None:
    host = fake_host(tmp_path, logical=4, threads_per_core=2)
    assert (host.logical_cores(), host.physical_cores()) == (4, 2)


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({}, None),
        ({"sys/fs/cgroup/cpu.max": "max 100000"}, None),
        ({"sys/fs/cgroup/cpu.max": "150000 100000"}, 1.5),
        ({"proc/self/cgroup": "0::/a/b", "sys/fs/cgroup/a/cpu.max": "50000 100000"}, 0.5),
        ({"sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000"}, None),
        (
            {
                "proc/self/cgroup": "3:cpu,cpuacct:/box",
                "sys/fs/cgroup/cpu/box/cpu.cfs_quota_us": "300000",
                "sys/fs/cgroup/cpu/box/cpu.cfs_period_us": "100000",
            },
            3.0,
        ),
        ({"sys/fs/cgroup/cpu.max": "garbage"}, None),
        ({"proc/self/cgroup": "0::/../../../etc\nnonsense\n::", "sys/fs/cgroup/cpu.max": "1 0"}, None),
    ],
)
def test_cpu_quota_of_either_control_group_version(files: dict[str, str], quota: float | None, tmp_path: Path) -> None:
    host = fake_host(tmp_path, files=files)
    assert host.cpu_quota() == quota
    assert host.usable_cores() == (2 if quota is None else max(1, min(2, int(quota))))


def test_a_memory_limit_of_the_control_group_is_the_memory(tmp_path: Path) -> None:
    assert fake_host(tmp_path, files={"sys/fs/cgroup/memory.max": str(1 << 30)}).memory_bytes() == 1 << 30
    unlimited = {"sys/fs/cgroup/memory.max": "max", "sys/fs/cgroup/memory/memory.limit_in_bytes": str(2**63 - 4096)}
    assert fake_host(tmp_path, files=unlimited).memory_bytes() == 8 << 30


def test_an_empty_machine_reads_as_unknown_not_as_an_error(tmp_path: Path) -> None:
    host = Host(root=tmp_path / "nothing", affinity=frozenset({0, 1}))
    assert (host.memory_bytes(), host.cpu_quota(), host.physical_cores()) == (None, None, 2)
    assert host.cpu_model()
    with pytest.raises(CannotRunError):
        detect(host=host, nvml_module=FakeNvml(gpus=0))


def test_this_machine_is_read() -> None:
    host = Host()
    assert host.logical_cores() >= host.physical_cores() >= host.usable_cores() >= 1
    assert (host.memory_bytes() or 0) > 1 << 20
