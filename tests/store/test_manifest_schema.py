from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from kvbench.cli.main import run as command_line
from kvbench.store.manifest_schema import manifest_schema
from kvbench.store.run import read_manifest
from tests.store.manifests import gpu_manifest, this_machine
from tests.sweep.conftest import MINI

VALIDATOR = Draft202012Validator(manifest_schema())


def faults(manifest: dict[str, Any]) -> list[str]:
    return [f"{'.'.join(map(str, e.path))}: {e.message[:200]}" for e in VALIDATOR.iter_errors(manifest)]


def test_the_schema_is_a_schema_and_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    Draft202012Validator.check_schema(manifest_schema())
    assert command_line(["manifest", "schema"]) == 0
    assert json.loads(capsys.readouterr().out) == manifest_schema()


def test_manifests_of_this_machine_and_of_one_with_gpus_are_valid(tmp_path: Path) -> None:
    assert faults(this_machine()) == []
    assert faults(gpu_manifest(tmp_path)) == []


@pytest.mark.parametrize("extra", [[], ["-a", "engine.kv_memory=auto"]])
def test_a_sealed_run_has_a_valid_manifest(tmp_path: Path, extra: list[str]) -> None:
    path = tmp_path / "mini.toml"
    path.write_text(MINI)
    assert command_line(["sweep", str(path), "--clock", "virtual", "--out", str(tmp_path / "out"), *extra]) == 0
    manifest = read_manifest(next((tmp_path / "out").iterdir()))
    assert faults(manifest) == []
    assert set(manifest["files"]) > {"cases.parquet", "workload.parquet", "plan.json"}
    workload = next(iter(manifest["controlled"]["workloads"].values()))
    assert workload["input_tokens"]["min"] >= 8


def test_every_field_has_a_description() -> None:
    def bare(schema: dict[str, Any], path: str) -> list[str]:
        found = [] if "description" in schema or "properties" in schema else [path]
        for name, inner in schema.get("properties", {}).items():
            found += bare(inner, f"{path}.{name}")
        return found

    assert bare(manifest_schema(), "") == []


@pytest.mark.parametrize("section", ["controlled", "environment", "volatile", "files", "run_id"])
def test_a_manifest_that_lacks_a_section_is_not_valid(tmp_path: Path, section: str) -> None:
    manifest = gpu_manifest(tmp_path)
    del manifest[section]
    assert faults(manifest)
