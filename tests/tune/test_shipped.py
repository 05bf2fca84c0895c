"""What runs where nothing was tuned, compiled for GPUs that are not there: no spills, wide loads, tensor cores.

A part of what `python benchmarks/compile_space.py --shipped` compiles (all of it takes minutes): every kernel, KV dtype
and configuration for sm_90, and the defaults of decode and prefill for sm_80 and sm_100 in 16 and in 8 bits.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvbench.tune.compile_pool import CompileJob, Outcome, compile_all
from kvbench.tune.pages import PAGES
from kvbench.tune.resources import Resources
from kvbench.tune.shapes import kernel_shape
from kvbench.tune.shipped import TARGETS, Shipped, compile_shipped, problems, shipped
from kvbench.tune.targets import known_target

ELSEWHERE = {"sm_80": ("bf16", "int8"), "sm_100": ("bf16", "fp8_e4m3")}


def is_in_the_suite(one: Shipped) -> bool:
    if one.target.name == "sm_90":
        return True
    is_common = one.kernel in ("decode", "prefill") and one.is_default and one.head_dim == "128"
    return is_common and one.kv_dtype in ELSEWHERE[one.target.name]


@pytest.fixture(scope="module")
def compiled() -> list[tuple[Shipped, Outcome]]:
    every = [one for kernel in PAGES for name in TARGETS for one in shipped(kernel, known_target(name))]
    chosen = [one for one in every if is_in_the_suite(one)]
    return list(zip(chosen, compile_shipped(chosen, workers=2), strict=True))


@pytest.mark.parametrize("kernel", PAGES)
def test_what_ships_is_clean(kernel: str, compiled: list[tuple[Shipped, Outcome]]) -> None:
    of_kernel = [(one, outcome) for one, outcome in compiled if one.kernel == kernel]
    assert of_kernel
    found = {
        f"{one.target.name} {one.kv_dtype} × {one.head_dim} {dict(one.configuration)}": said
        for one, outcome in of_kernel
        if (said := problems(one, outcome))
    }
    assert found == {}


def test_merging_the_splits_of_a_decode_spills_nothing() -> None:
    from kvbench_kernels.decode_triton import DEFAULT, merge_spec

    shape = kernel_shape("decode", kv_dtype="int8")
    (outcome,) = compile_all([CompileJob(merge_spec(shape, DEFAULT), known_target("sm_90").arch)], workers=1)
    assert outcome.resources is not None, outcome.reason
    assert outcome.resources.spill_bytes == 0


CLEAN = Resources(64, 0, 0, 0, 16_384, 0, 4, 8, 2, 16, "HMMA", "a")


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({}, None),
        ({"spill_load_bytes": 4}, "4 bytes are spilled"),
        ({"shared_bytes": 166_913}, "166913 bytes of shared memory are beyond 166912"),
        ({"wide_loads": 0}, "no global load of 16 bytes"),
        ({"tensor_core": 0}, "no tensor core is used"),
    ],
)
def test_what_is_not_clean_is_said(change: dict[str, int], problem: str | None) -> None:
    one = shipped("decode", known_target("sm_80"))[0]
    said = problems(one, Outcome("compiled", 1.0, "", replace(CLEAN, **change)))  # type: ignore[arg-type]
    assert problem in said if problem else said == []


def test_a_compile_that_failed_is_a_problem() -> None:
    one = shipped("decode", known_target("sm_80"))[0]
    assert problems(one, Outcome("crashed", 1.0, "killed by SIGABRT")) == ["crashed: killed by SIGABRT"]


def test_fp8_e4m3_is_not_asked_of_gpus_that_cannot_read_it() -> None:
    assert not [one for kernel in PAGES for one in shipped(kernel, known_target("sm_80")) if one.kv_dtype == "fp8_e4m3"]
    assert [one for one in shipped("decode", known_target("sm_90")) if one.kv_dtype == "fp8_e4m3"]
