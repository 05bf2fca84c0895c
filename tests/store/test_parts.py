from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from kvbench.errors import InternalError
from kvbench.measure.warnings import RowWarning
from kvbench.store.parts import read_part, read_parts, write_part
from kvbench.store.run import open_run
from kvbench.store.run_folder import RunFolder
from tests.store.samples import plan, sample, step_record


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    with RunFolder.create(tmp_path, plan()) as folder:
        return folder.path


def test_a_part_reads_back_as_it_was_written(run_dir: Path) -> None:
    wanted = sample(1, 1, output_tokens_per_s=1 / 3, error="né\x1b[31m")
    part = read_part(write_part(run_dir, wanted))
    assert part.key == (wanted.case_id, 1)
    assert part.row["output_tokens_per_s"] == 1 / 3
    assert part.row["error"] == "né\x1b[31m"
    requests, steps = part.table("requests"), part.table("steps")
    assert requests is not None
    assert steps is not None
    assert requests["itl_s"].to_pylist() == [r.itl_s for r in wanted.requests or ()]
    assert steps["duration_s"].to_pylist() == [s.duration_s for s in wanted.steps or ()]
    assert requests["cache_dtype"].to_pylist() == ["fp32", "fp32"]


def test_numpy_scalars_and_named_tuples_are_stored_as_plain_values(run_dir: Path) -> None:
    row = {
        "output_tokens_per_s": np.float64(2.5),
        "steps": np.int64(7),
        "warnings": [RowWarning("w", {"n": np.int32(1)})],
    }
    part = read_part(write_part(run_dir, sample(**row)))
    assert (part.row["output_tokens_per_s"], part.row["steps"]) == (2.5, 7)
    assert json.loads(part.row["warnings"]) == [{"name": "w", "numbers": {"n": 1}}]


def test_a_number_that_is_none_is_stored_as_missing_and_says_so(run_dir: Path) -> None:
    part = read_part(write_part(run_dir, sample(ttft_mean_s=float("nan"), wall_s=float("inf"))))
    assert part.row["ttft_mean_s"] is None
    (warning,) = json.loads(part.row["warnings"])
    assert warning["name"] == "not_a_number"
    assert set(warning["numbers"]) == {"ttft_mean_s", "wall_s"}


def test_m10_a_sample_without_a_metric_is_never_ok(run_dir: Path) -> None:
    part = read_part(write_part(run_dir, sample(output_tokens_per_s=None)))
    assert part.row["status"] == "invalid"
    assert "no metric" in part.row["error"]


def test_costs_and_numeric_error_alone_are_no_measurement(run_dir: Path) -> None:
    part = read_part(write_part(run_dir, sample(output_tokens_per_s=None, kv_error_rel_rms=0.1, case_s=3.0)))
    assert part.row["status"] == "invalid"


def test_above_the_limit_one_step_in_k_is_stored_and_the_row_says_so(run_dir: Path) -> None:
    wanted = sample()
    wanted.steps = [step_record(n) for n in range(101)]
    part = read_part(write_part(run_dir, wanted, max_steps=25))
    steps = part.table("steps")
    assert part.row["steps_stride"] == 5
    assert steps is not None
    assert steps["step"].to_pylist() == list(range(0, 101, 5))


def test_a_name_that_is_no_column_leaves_nothing_behind(run_dir: Path) -> None:
    with pytest.raises(InternalError, match="outptu_tokens"):
        write_part(run_dir, sample(outptu_tokens=3))
    assert not (run_dir / "parts").exists() or not list((run_dir / "parts").iterdir())
    assert not list((run_dir / ".staging").iterdir())


@pytest.mark.parametrize("name", ["part.json", "requests.parquet", "steps.parquet"])
@pytest.mark.parametrize("damage", ["flip", "cut", "remove"])
def test_a_damaged_part_is_reported_and_treated_as_missing(run_dir: Path, name: str, damage: str) -> None:
    write_part(run_dir, sample(0))
    path = write_part(run_dir, sample(1)) / name
    data = path.read_bytes()
    if damage == "remove":
        path.unlink()
    else:
        middle = len(data) // 2
        path.write_bytes(data[:middle] if damage == "cut" else data[:middle] + b"#" + data[middle + 1 :])
    parts, problems = read_parts(run_dir)
    assert [part.key for part in parts] == [(sample(0).case_id, 0)]
    assert len(problems) == 1
    assert name in problems[0]
    assert len(open_run(run_dir).cases) == 1


def test_a_part_in_another_samples_folder_is_not_believed(run_dir: Path) -> None:
    path = write_part(run_dir, sample(0, 0))
    path.rename(path.with_name(f"{sample(0).case_id}-1"))
    assert read_parts(run_dir)[0] == []


def test_an_earlier_part_of_the_same_key_is_kept_aside(run_dir: Path) -> None:
    for text in ("first", "second", "third"):
        write_part(run_dir, sample(status="error", error=text))
    assert read_parts(run_dir)[0][0].row["error"] == "third"
    kept = sorted(json.loads((p / "part.json").read_text())["row"]["error"] for p in (run_dir / "superseded").iterdir())
    assert kept == ["first", "second"]
