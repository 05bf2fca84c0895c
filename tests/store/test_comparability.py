"""Two runs are compared only where nothing but the declared treatment differs."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from kvbench.errors import ExitCode, UsageError
from kvbench.store.comparability import NotComparableError, compare_manifests
from kvbench.store.comparability_rules import MUST_BE_EQUAL, NOTED, TREATMENTS, fits
from kvbench.store.manifest import flat_paths
from tests.store.manifests import gpu_manifest, mutated, this_machine

METHOD = """GPU name, SM count, GPU memory, MIG profile, ECC; driver, CUDA runtime, torch, Triton, numba, Python;
power limit, clock locks, application clocks, persistence mode, compute mode; number of GPUs, topology of
GPUs; model geometry, weight dtype, KV dtype, engine setting, workload setting, kernel setting, KV memory;
workload digest, workload seed, seed of the order; cache state; environment variable; CPU model, CPU
clocks, core affinity, NUMA binding, threads; container image; schema version; iterations and warm-up; GPU
UUID; clock, wall or virtual"""
"""The items of the method's list, as docs/gate.md gives them."""

FOLLOWS = {"suite.name", "suite.title", "suite.claim", "suite.digest", "suite.text", "repetitions"}
"""Noted by name here; what else may differ follows from settings or says where a file lies."""


def refused(left: dict[str, Any], right: dict[str, Any], **options: Any) -> list[str]:
    """Fields that make a refusal."""
    found = compare_manifests(left, right, **options)
    if not found.refused:
        found.check()
        return []
    with pytest.raises(NotComparableError) as caught:
        found.check()
    assert caught.value.exit_code == ExitCode.CANNOT
    assert caught.value.hint
    return [difference.field for difference in found.refused]


def _is_noted(field: str) -> bool:
    parts = field.split(".")
    if parts[0] == "cases":
        return parts[2] in ("case_id", "axes", "fingerprint", "label", "memory_bytes", "notes", "refusal") or (
            parts[2:] == ["workload", "trace"]
        )
    if parts[0] == "workloads":
        return parts[2] != "seed"
    return field in FOLLOWS or field.startswith("suite.effective") or field.endswith(("geometry.source",)) or (
        field in ("measure.repetitions", "measure.timeout_s")
    )  # fmt: skip


def _is_code(field: str) -> bool:
    code = ("engine_digest", "kernel_digest", "kvbench_version", "system.versions.kvbench")
    return field in code or field.startswith("system.kvbench.")


def test_m60_a_change_of_any_single_field_that_must_be_equal_is_refused(tmp_path: Path) -> None:
    """Baseline from another GPU, driver, power limit, block size: every field of a real manifest, one at a time."""
    base, seen = gpu_manifest(tmp_path), 0
    for field, changed in mutated(base):
        if _is_noted(field):
            assert refused(base, changed) == [], field
        elif _is_code(field):
            assert refused(base, changed) == [], field
            assert len(refused(base, changed, vary=())) == 1, field
        else:
            seen += 1
            assert refused(base, changed), field
            assert refused(changed, base), field
    assert seen > 350


def test_every_item_of_the_list_is_of_some_field_and_every_item_of_the_method_is_on_the_list(tmp_path: Path) -> None:
    manifest = gpu_manifest(tmp_path)
    fields = [path for path, _ in flat_paths({"schema_version": 1, **manifest["controlled"]})] + [("system", "gpus")]
    for item in MUST_BE_EQUAL:
        for pattern in item.fields:
            assert any(fits(path, (pattern,)) for path in fields), (item.name, pattern)
    for pattern in NOTED:
        if not pattern.startswith("workloads.*.") or pattern == "workloads.*.report.**":
            assert any(fits(path, (pattern,)) for path in fields), pattern
    names = {item.name for item in MUST_BE_EQUAL}
    parts = METHOD.replace("\n", " ").replace("clock, wall", "clock| wall").replace(";", ",").split(",")
    assert {part.strip().replace("|", ",") for part in parts} <= names


def test_fifty_captures_of_this_machine_are_never_refused() -> None:
    first = this_machine()
    for _ in range(50):
        assert refused(first, this_machine(), vary=()) == []


def test_what_surrounds_a_run_is_noted_and_never_refused(tmp_path: Path) -> None:
    base = gpu_manifest(tmp_path)
    for path, _ in flat_paths(base["environment"]):
        changed = copy.deepcopy(base)
        place = changed["environment"]
        for key in path[:-1]:
            place = place[int(key)] if isinstance(place, list) else place[key]
        place[path[-1]] = "elsewhere"
        found = compare_manifests(base, changed, vary=())
        assert [d.role for d in found.differences] == ["noted"], path


def test_another_card_of_the_same_kind_is_refused_for_stored_runs_only(tmp_path: Path) -> None:
    base, changed = gpu_manifest(tmp_path), gpu_manifest(tmp_path)
    changed["controlled"]["system"]["gpus"][1]["uuid"] = "GPU-5678"
    assert refused(base, changed) == ["system.gpus.1.uuid"]
    assert refused(base, changed, is_stored=False) == []


def test_predicted_times_never_meet_measured_ones_whatever_is_declared(tmp_path: Path) -> None:
    base, changed = gpu_manifest(tmp_path), gpu_manifest(tmp_path)
    changed["controlled"]["clock"] = "virtual"
    changed["controlled"]["measure"]["clock"] = "virtual"
    for vary in ([], ["measure"], [*TREATMENTS, "measure", "device", "cost_model"]):
        assert "clock" in refused(base, changed, vary=vary)
    with pytest.raises(UsageError, match="never"):
        compare_manifests(base, changed, vary=["clock"])


def test_the_machine_that_predicts_decides_nothing(tmp_path: Path) -> None:
    base, changed = gpu_manifest(tmp_path), this_machine()
    for side in (base, changed):
        side["controlled"]["clock"] = "virtual"
        side["controlled"]["models"] = {}
    assert refused(base, changed) == []


def _with_block_size(manifest: dict[str, Any], at: int, value: int) -> dict[str, Any]:
    changed = copy.deepcopy(manifest)
    case = changed["controlled"]["cases"][at]
    case["engine"]["block_size"] = value
    case["case_id"] = f"{at:06d}{value:06d}"
    return changed


def test_a_block_size_that_differs_is_refused_unless_it_is_the_treatment(tmp_path: Path) -> None:
    base = gpu_manifest(tmp_path)
    changed = _with_block_size(base, 0, 32)
    found = compare_manifests(base, changed)
    assert [(d.field, d.left, d.right, d.cases, d.vary) for d in found.refused] == [
        ("engine.block_size", 4, 32, 1, "block_size")
    ]
    assert (len(found.pairs), found.left_only, found.right_only) == (3, (), ())
    assert refused(base, changed, vary=["git_commit", "block_size"]) == []
    assert refused(base, changed, vary=["engine.block_size"]) == []
    assert refused(base, changed, vary=["kv_dtype"]) == ["engine.block_size"]


def test_cases_are_paired_over_an_axis_that_is_the_treatment(tmp_path: Path) -> None:
    base = gpu_manifest(tmp_path)
    base["controlled"]["cases"] = base["controlled"]["cases"][:1]
    changed = _with_block_size(base, 0, 32)
    changed["controlled"]["cases"][0]["axes"] = {"block_size": 32}
    assert compare_manifests(base, changed).pairs == ()
    found = compare_manifests(base, changed, vary=["block_size"])
    assert list(found.pairs) == [(base["controlled"]["cases"][0]["case_id"], "000000000032")]
    found.check()


def test_a_case_on_one_side_is_listed_and_its_model_and_workload_are_no_differences(tmp_path: Path) -> None:
    base, changed = gpu_manifest(tmp_path), gpu_manifest(tmp_path)
    lost = changed["controlled"]["cases"].pop(0)
    changed["controlled"]["models"]["another"] = {"geometry": {}}
    found = compare_manifests(base, changed)
    assert (found.left_only, found.right_only, found.refused) == ((lost["case_id"],), (), [])


def test_a_run_that_was_resumed_on_another_machine_is_not_one_measurement(tmp_path: Path) -> None:
    base, changed = gpu_manifest(tmp_path), gpu_manifest(tmp_path)
    earlier = copy.deepcopy(changed["controlled"]["system"])
    earlier["kvbench"]["git_commit"] = "older"
    changed["controlled"]["earlier_systems"] = [earlier]
    assert refused(base, changed) == []
    earlier["driver"]["version"] = "500"
    assert refused(base, changed, vary=["driver"]) == ["system.driver.version (within the second run)"]


def test_a_word_that_names_nothing_is_a_usage_error_with_the_nearest_words(tmp_path: Path) -> None:
    base = gpu_manifest(tmp_path)
    with pytest.raises(UsageError, match="git_comit") as caught:
        compare_manifests(base, base, vary=["git_comit"])
    assert "git_commit" in str(caught.value.hint)
    compare_manifests(base, base, vary=["driver", "block_size", "system.versions.torch", "prefix.groups"])


def test_a_missing_field_and_one_that_the_machine_does_not_tell_are_the_same(tmp_path: Path) -> None:
    base, changed = gpu_manifest(tmp_path), gpu_manifest(tmp_path)
    base["controlled"]["system"]["cpu"]["governor"] = None
    changed["controlled"]["system"]["cpu"].pop("governor")
    assert refused(base, changed) == []
    base["controlled"]["system"]["cpu"]["governor"] = "performance"
    assert refused(base, changed) == ["system.cpu.governor"]
