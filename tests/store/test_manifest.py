from __future__ import annotations

import copy
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.errors import DataError
from kvbench.store.manifest import build_manifest, check_shape, differences, flat_fields
from kvbench.store.run import open_run
from kvbench.store.run_folder import RunFolder
from tests.store.samples import plan, run_folder, sample

ENVIRONMENT = {
    "controlled": {"python": "3.11.7", "variables": {"OMP_NUM_THREADS": "2"}},
    "environment": {"kernel_release": "6.1", "host": "a"},
    "volatile": {"load_average": [1.0]},
}


def manifest(**changes: object) -> dict[str, object]:
    found = {**plan(), "run_id": "r", "created_at": "t", "environment": ENVIRONMENT, **changes}
    return build_manifest(copy.deepcopy(found))


def test_the_machine_is_kept_in_its_three_classes() -> None:
    found = manifest()
    assert found["controlled"]["system"] == ENVIRONMENT["controlled"]  # type: ignore[index]
    assert found["environment"] == ENVIRONMENT["environment"]
    assert found["volatile"]["readings"] == ENVIRONMENT["volatile"]  # type: ignore[index]


def test_a_manifest_does_not_differ_from_itself() -> None:
    left = manifest()
    assert differences(left, copy.deepcopy(left)) == []


@given(st.sampled_from(["suite.digest", "repetitions", "system.python", "system.variables.OMP_NUM_THREADS"]))
def test_a_change_of_one_controlled_field_is_found_and_named(field: str) -> None:
    left, right = manifest(), manifest()
    *parents, last = field.split(".")
    place = right["controlled"]
    for parent in parents:
        place = place[parent]  # type: ignore[index]
    place[last] = "changed"  # type: ignore[index]
    found = [d for d in differences(left, right) if d.field_class == "controlled"]
    assert [(d.field, d.right) for d in found] == [(field, "changed")]


def test_controlled_differences_come_first_and_a_case_on_one_side_shows_as_missing() -> None:
    right = manifest(environment={**ENVIRONMENT, "environment": {"kernel_release": "6.2"}}, created_at="u")
    right["controlled"]["cases"].pop()  # type: ignore[index]
    found = differences(manifest(), right)
    classes = [d.field_class for d in found]
    assert classes == sorted(classes, key=["controlled", "environment", "volatile"].index)
    lost = manifest()["controlled"]["cases"][-1]["case_id"]  # type: ignore[index]
    assert [(d.field, d.right) for d in found if d.field.startswith("cases.")] == [(f"cases.{lost}", None)]


def test_m12_the_order_of_execution_is_in_the_manifest(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path, plan(3, 1)) as folder:
        for case in (2, 0, 1):
            folder.add(sample(case))
        folder.seal()
        order = open_run(folder.path).manifest["volatile"]["order"]
    assert [case_id for case_id, _, _ in order] == [sample(case).case_id for case in (2, 0, 1)]


def test_two_runs_of_one_plan_differ_in_nothing_controlled(tmp_path: Path) -> None:
    runs = [open_run(run_folder(tmp_path / name, is_sealed=name == "a")).manifest for name in ("a", "b")]
    assert {d.field_class for d in differences(*runs)} == {"volatile"}


def test_every_field_is_listed_with_its_class(tmp_path: Path) -> None:
    found = flat_fields(open_run(run_folder(tmp_path, is_sealed=True)).manifest)
    assert ("controlled", "repetitions", 2) in found
    assert any(name == "files.steps.parquet" for _, name, _ in found)


@pytest.mark.parametrize("wrong", [{}, {"controlled": 5}, {"controlled": {}, "environment": [], "volatile": {}}])
def test_what_is_no_manifest_is_bad_data(wrong: dict[str, object]) -> None:
    with pytest.raises(DataError, match="no section"):
        check_shape(wrong, "manifest.json")
