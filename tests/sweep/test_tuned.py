"""A sweep uses what was tuned for its shapes, says so, and is not to be mixed with one that did not."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvbench.devices.host import Host
from kvbench.spec.load import from_effective
from kvbench.spec.suite import KernelSettings
from kvbench.sweep.planner import make_plan
from kvbench.sweep.run import run_plan
from kvbench.sweep.tuned import kernel_case_shape
from kvbench.tuned.files import keep
from kvbench.tuned.key import device_label, key_of
from kvbench_kernels.specs import KernelShape
from tests.tuned.cache import own_cache
from tests.tuned.entries import winner

KERNEL = {
    "kernel": {"batch": 3, "context": 200, "attention": "numba"},
    "measure": {"repetitions": 1, "threads": 1, "redo_share": 0},
}
ENGINE = {
    "model": {"name": "tiny-llama"},
    "engine": {"kv_memory": "1MiB", "max_context": 256},
    "workload": {"requests": 4, "input_tokens": 40, "output_tokens": 8},
    "measure": {"repetitions": 1, "threads": 1, "redo_share": 0},
}
TUNED = {"split": 64, "tile": 64, "threads": 1}


def planned(suite: dict[str, Any], **measure: Any) -> Any:
    return make_plan(from_effective({"name": "t", **suite, "measure": {**suite["measure"], **measure}}))


def tuned_for(shape: KernelShape, **changes: Any) -> None:
    device = device_label("cpu", Host().cpu_model(), 1)
    key = key_of("decode_numba", "kvbench_kernels.decode_numba", "numba", device, shape)
    keep(winner(replace(key, **changes), TUNED))


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own_cache(tmp_path, monkeypatch)


def test_a_kernel_case_runs_the_winner_of_its_bucket_and_the_run_names_it(tmp_path: Path) -> None:
    tuned_for(KernelShape("fp32", "fp32", False, 16, 8, 2, 64, 64, "hnd", batch=4, context=256))
    plan = planned(KERNEL)
    (case,) = plan.cases
    assert case.job.tuned == {"full 2x64+64": TUNED}
    run = run_plan(plan, out=tmp_path)
    assert list(run.cases["status"]) == ["ok"]
    assert json.loads(run.cases["tuned"][0]) == {"full 2x64+64": TUNED}
    facts = run.manifest["controlled"]["tuned"]
    assert facts["is_on"]
    assert [used["configuration"] for used in facts["configurations"]] == [TUNED]
    assert any("split 64" in line for line in plan.tuned.foreword())


def test_without_tuned_the_default_runs_and_it_is_another_sample() -> None:
    plain = planned(KERNEL)
    tuned_for(KernelShape("fp32", "fp32", False, 16, 8, 2, 64, 64, "hnd", batch=4, context=256))
    off, on = planned(KERNEL, tuned=False), planned(KERNEL)
    assert off.cases[0].job.tuned == {}
    assert off.to_dict()["tuned"]["configurations"] == []
    assert off.cases[0].job.fingerprint == plain.cases[0].job.fingerprint != on.cases[0].job.fingerprint
    assert off.to_dict()["tuned"]["digest"] != on.to_dict()["tuned"]["digest"]


def test_an_engine_case_gets_the_winner_of_its_mean_context_and_its_batch(tmp_path: Path) -> None:
    """Four requests, and (40 + 8 / 2) tokens of context over the decoded tokens: bucket 4 × 64."""
    from kvbench.geometry.resolve import resolve_model

    model = resolve_model("tiny-llama")
    (group,) = model.groups
    heads = (model.query_heads, group.kv_heads, group.k_head_dim, group.v_head_dim)
    tuned_for(KernelShape("fp32", "fp32", False, 16, *heads, "hnd", batch=4, context=64))
    plan = planned(ENGINE)
    label = f"full {heads[1]}x{heads[2]}+{heads[3]}"
    assert plan.cases[0].job.tuned == {label: TUNED}
    run = run_plan(plan, out=tmp_path)
    assert list(run.cases["status"]) == ["ok"]


def test_a_stale_winner_is_not_used_and_named_with_the_command() -> None:
    shape = KernelShape("fp32", "fp32", False, 16, 8, 2, 64, 64, "hnd", batch=4, context=256)
    tuned_for(shape, source="0123456789abcdef")
    plan = planned(KERNEL)
    assert plan.cases[0].job.tuned == {}
    (line,) = plan.tuned.foreword()
    assert "0123456789abcdef" in line
    assert "kvbench tune decode_numba" in line


@pytest.mark.parametrize(
    ("configuration", "why"),
    [({"split": 100, "tile": 7, "threads": 0}, "a tile has one of"), ({"split": 256, "threads": "2"}, "whole numbers")],
)
def test_a_winner_that_the_cpu_kernel_cannot_run_is_named_and_the_default_runs(
    configuration: dict[str, Any], why: str
) -> None:
    """As from a file of somebody's own, whose digest is right."""
    device = device_label("cpu", Host().cpu_model(), 1)
    shape = KernelShape("fp32", "fp32", False, 16, 8, 2, 64, 64, "hnd", batch=4, context=256)
    key = key_of("decode_numba", "kvbench_kernels.decode_numba", "numba", device, shape)
    keep(winner(key, configuration))
    plan = planned(KERNEL)
    assert plan.cases[0].job.tuned == {}
    (line,) = plan.tuned.foreword()
    assert why in line


def test_a_corrupt_store_is_named_and_the_defaults_run(tmp_path: Path) -> None:
    (tmp_path / "cache" / "tuned").mkdir(parents=True)
    (tmp_path / "cache" / "tuned" / "0.json").write_text("{")
    plan = planned(KERNEL)
    assert plan.cases[0].job.tuned == {}
    (line,) = plan.tuned.foreword()
    assert "0.json" in line


def test_the_virtual_clock_looks_nothing_up() -> None:
    tuned_for(KernelShape("fp32", "fp32", False, 16, 8, 2, 64, 64, "hnd", batch=4, context=256))
    plan = planned({k: v for k, v in ENGINE.items() if k != "measure"} | {"measure": {"clock": "virtual"}})
    assert plan.to_dict()["tuned"]["is_on"] is False


def tuned_for_triton(kernel: str, shape: KernelShape, configuration: dict[str, int]) -> None:
    device = device_label("cpu", Host().cpu_model(), 1)
    key = key_of(kernel, f"kvbench_kernels.{kernel}_triton", "triton", device, shape)
    keep(winner(key, configuration))


TRITON = {"tile": 32, "warps": 4, "stages": 2, "head_rows": 16, "splits": 2}
PREFILL = {"rows": 32, "tile": 16, "warps": 4, "stages": 2}


def test_a_case_of_the_triton_backend_gets_winners_of_its_decode_and_of_its_prefill(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Prompts of 40 tokens: bucket 64 of query tokens, and as many pieces as a step of 512 tokens has room for, but no
    more than sequences. The kernels are not launched here."""
    pytest.importorskip("triton")
    from kvbench.geometry.resolve import resolve_model

    monkeypatch.setenv("TRITON_INTERPRET", "1")
    model = resolve_model("tiny-llama")
    (group,) = model.groups
    heads = (model.query_heads, group.kv_heads, group.k_head_dim, group.v_head_dim)
    decode = KernelShape("fp32", "fp32", False, 16, *heads, "hnd", batch=4, context=64)
    tuned_for_triton("decode", decode, TRITON)
    tuned_for_triton("prefill", replace(decode, batch=8, query_tokens=64), PREFILL)
    engine = {**ENGINE["engine"], "attention": "triton", "max_batch_tokens": 320, "max_sequences": 8}
    plan = planned({**ENGINE, "engine": engine})
    label = f"full {heads[1]}x{heads[2]}+{heads[3]}"
    assert plan.cases[0].job.tuned == {label: TRITON, f"prefill {label}": PREFILL}
    used = plan.to_dict()["tuned"]["configurations"]
    assert {one["kernel"] for one in used} == {"decode", "prefill"}


def test_a_winner_that_its_kernel_cannot_run_is_named_and_the_default_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    shape = KernelShape("fp32", "fp32", False, 16, 8, 2, 64, 64, "hnd", batch=4, context=256)
    tuned_for_triton("decode", shape, {**TRITON, "tile": 24})
    plan = planned({**KERNEL, "kernel": {"batch": 3, "context": 200, "attention": "triton"}})
    assert plan.cases[0].job.tuned == {}
    assert plan.to_dict()["tuned"]["configurations"] == []
    (line,) = plan.tuned.foreword()
    assert "tile 24" in line
    assert "the default runs" in line


def test_queries_of_a_kernel_case_are_bf16_on_a_gpu_and_float32_beside_float32_kv() -> None:
    """What is looked up is what is run: the key's dtype is the queries'."""
    for device, kv_dtype, expected in (
        ("cpu", "bf16", "fp32"),
        ("cuda", "bf16", "bf16"),
        ("cuda", "int8", "bf16"),
        ("cuda", "fp32", "fp32"),
    ):
        kernel = KernelSettings(kv_dtype=kv_dtype)  # type: ignore[arg-type]
        assert kernel_case_shape(kernel, device).query_dtype == expected
