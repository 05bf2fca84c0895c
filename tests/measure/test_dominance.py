"""Who must run out of memory because another did."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvbench.measure.dominance import is_implied
from kvbench.measure.job import CaseJob
from kvbench.spec.engine import EngineSettings
from kvbench.spec.suite import KernelSettings


def _kernel(**settings: object) -> CaseJob:
    kernel = KernelSettings(**settings).model_dump(mode="json")  # type: ignore[arg-type]
    return CaseJob("k", 0, "kernel", "f", {}, {}, kernel=kernel)


def _engine(**settings: object) -> CaseJob:
    engine = EngineSettings(kv_memory=1 << 30).model_copy(update=settings).model_dump(mode="json")
    return CaseJob("e", 0, "engine", "f", {}, {"name": "m"}, engine=engine, workload={"requests": 3})


@pytest.mark.parametrize(
    ("changes", "implied"),
    [
        ({"batch": 16}, True),
        ({"context": 2048, "batch": 16}, True),
        ({"kv_dtype": "fp32"}, True),
        ({"batch": 4}, False),
        ({"batch": 16, "context": 512}, False),
        ({"kv_dtype": "int8", "batch": 16}, False),
        ({"block_size": 32, "batch": 16}, False),
    ],
)
def test_m08_larger_shapes_of_a_kernel_that_ran_out_are_implied(changes: dict[str, object], implied: bool) -> None:
    """A case runs out of memory at (batch, length, dtype): whatever needs no less is `oom_implied`, nothing else."""
    assert is_implied(_kernel(**{"kv_dtype": "bf16", **changes}), _kernel(kv_dtype="bf16")) is implied


def test_m08_engine_cases_are_compared_at_equal_settings_otherwise() -> None:
    small = _engine()
    assert is_implied(_engine(kv_memory=2 << 30), small)
    assert not is_implied(_engine(kv_memory=2 << 30, block_size=32), small)
    assert not is_implied(replace(_engine(kv_memory=2 << 30), workload={"requests": 4}), small)
    assert not is_implied(_kernel(), small)
