"""Free memory without torch, and without a CUDA context in the process that asks."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest

from kvbench.errors import CannotRunError
from kvbench.measure.memory import free_memory_bytes

from ..devices.fakes import FakeNvml


def test_a_gpus_free_memory_is_what_the_driver_has_not_given_away() -> None:
    fake = FakeNvml(nvmlDeviceGetMemoryInfo=SimpleNamespace(total=80 << 30, used=30 << 30, free=1))
    assert free_memory_bytes("cuda", nvml_module=fake) == 50 << 30


@pytest.mark.parametrize("fake", [FakeNvml(gpus=0), FakeNvml(failing={"nvmlDeviceGetMemoryInfo"})])
def test_a_driver_that_does_not_answer_is_one_error_with_a_hint(fake: FakeNvml) -> None:
    with pytest.raises(CannotRunError) as caught:
        free_memory_bytes("cuda", nvml_module=fake)
    assert caught.value.hint


def test_asking_needs_no_torch() -> None:
    code = (
        "import sys; sys.modules['torch'] = None; from kvbench.measure.memory import free_memory_bytes; "
        "print(free_memory_bytes('cpu') > 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True"
