"""What a case is called in a line of talk."""

from __future__ import annotations

from pathlib import Path

from kvbench.spec.cases import expand
from kvbench.spec.load import load_suite
from kvbench.sweep.labels import COMMONEST, labels

HEAD = 'name = "t"\n[engine]\n[axes]\n'
FOUR = (
    HEAD
    + 'engine.block_size = [8, 16]\nengine.kv_dtype = ["fp32", "int8"]\nworkload.seed = [1, 2]\nmodel.seed = [3, 4]\n'
)


def labels_of(tmp_path: Path, text: str) -> list[str]:
    file = tmp_path / "t.toml"
    file.write_text(text)
    return labels(expand(load_suite(file).suite))


def test_an_axis_of_one_value_tells_nothing_and_is_left_out(tmp_path: Path) -> None:
    found = labels_of(tmp_path, FOUR + "engine.max_sequences = [32]\n")
    assert found[0] == "block_size=8 kv_dtype=fp32 workload_seed=1 model_seed=3"
    assert len(set(found)) == 16


def test_a_single_case_has_all_its_axes(tmp_path: Path) -> None:
    assert labels_of(tmp_path, HEAD + "engine.block_size = [8]\n") == ["block_size=8"]


def test_of_many_axes_only_what_is_uncommon_is_said_and_cases_stay_apart(tmp_path: Path) -> None:
    found = labels_of(tmp_path, FOUR + "engine.max_sequences = [32, 64]\n")
    assert found[0] == COMMONEST
    assert len(set(found)) == len(found) == 32
