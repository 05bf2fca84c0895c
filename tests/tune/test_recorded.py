"""Recorded spaces in both formats, and files that are none."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from kvbench.cli.main import run
from kvbench.errors import UsageError
from kvbench.tune.recorded import read_recording
from tests.tune.spaces import valley, write_cache, write_t4


@pytest.mark.parametrize("write", [write_cache, write_t4])
def test_both_formats_give_the_space_that_was_written(write, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    wanted = valley()
    found = read_recording(write(tmp_path / "valley.json", wanted))
    assert found.name == "valley"
    assert found.space == wanted.space
    assert np.array_equal(found.times, wanted.times)
    assert found.failed == int(np.isinf(wanted.times).sum()) > 0


def test_gzip_is_the_same(tmp_path: Path) -> None:
    plain = write_cache(tmp_path / "a.json", valley())
    packed = tmp_path / "a.json.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert read_recording(packed).name == "a"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        "no json",
        '{"cache": {}}',
        '{"results": []}',
        '{"cache": {"1": {"time": 1.0}}, "tune_params_keys": ["a"]}',
        '{"cache": {"1": {"a": 1, "time": "CompilationFailedConfig"}}, "tune_params_keys": ["a"]}',
        '{"results": [{"configuration": {"a": 1}, "invalidity": "compile"}]}',
        '{"results": ["x"]}',
        '{"results": [{"measurements": []}]}',
        '{"results": [{"configuration": {}, "measurements": []}]}',
        '{"results": [{"configuration": {"a": 1}, "measurements": "time"}]}',
        '{"cache": {"1": "x"}, "tune_params_keys": ["a"]}',
        '{"cache": {"1": {"a": 1, "time": 1.0}}}',
        '{"cache": {"1": {"a": 1, "time": 1.0}}, "tune_params_keys": "a"}',
        '{"cache": {"1": {"a": 1, "time": 1.0}}, "tune_params_keys": ["a"], "objective": 3}',
        '{"cache": {"1": {"a": 1, "time": 1.0}, "2": {"a": 2, "time": -1}}, "tune_params_keys": ["a"]}',
        '{"cache": {"1": {"a": 1, "time": 1.0}, "2": {"a": 2, "time": 0}}, "tune_params_keys": ["a"]}',
        '{"cache": {"1": {"a": 1, "time": 1.0}, "2": {"a": 1, "time": 2.0}}, "tune_params_keys": ["a"]}',
        '{"cache": {"1": {"a": [1], "time": 1.0}}, "tune_params_keys": ["a"]}',
        '{"cache": {"1": {"a": 1, "time": 1.0}}, "tune_params_keys": ["a", "a"]}',
        '{"cache": {"1": {"a": null, "time": 1.0}, "2": {"a": 1, "time": 1.0}}, "tune_params_keys": ["a"]}',
        '{"cache": {"1": {"a": NaN, "time": 1.0}}, "tune_params_keys": ["a"]}',
        "[" * 100_000,
    ],
)
def test_what_is_no_recorded_space_is_refused_with_a_hint(text: str, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        read_recording(path)
    assert caught.value.hint


def test_a_cut_gzip_and_a_missing_file_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.json.gz"
    path.write_bytes(gzip.compress(b"{}" * 1000)[:40])
    with pytest.raises(UsageError):
        read_recording(path)
    with pytest.raises(UsageError, match="cannot read"):
        read_recording(tmp_path / "nowhere.json")


def test_a_damaged_gzip_is_refused(tmp_path: Path) -> None:
    path = write_cache(tmp_path / "x.json", valley())
    packed = bytearray(gzip.compress(path.read_bytes()))
    packed[40:400] = bytes(360)
    path.write_bytes(packed)
    with pytest.raises(UsageError, match="gzip"):
        read_recording(path)


def test_what_is_no_time_counts_as_failed_and_unknown_fields_are_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    times = ["1.5", "NaN", "Infinity", "1e20", "true", "null", '"CompilationFailedConfig"', "9" * 400]
    entries = ", ".join(f'"{a}": {{"a": {a}, "time": {time}, "watts": [1]}}' for a, time in enumerate(times))
    path.write_text(f'{{"schema": 9, "tune_params_keys": ["a"], "cache": {{{entries}}}}}')
    found = read_recording(path)
    assert (len(found.times), found.failed, found.best) == (8, 7, 1.5)


def test_t4_with_unknown_fields_and_unknown_failures_is_read(tmp_path: Path) -> None:
    good = {"configuration": {"a": 1}, "new": {}, "measurements": [{"name": "time", "value": 2, "new": 1}, {"new": 1}]}
    bad = good | {"configuration": {"a": 2}, "invalidity": "melted"}
    path = tmp_path / "x.json"
    path.write_text(json.dumps({"schema_version": "99", "results": [good, bad], "new": 1}))
    found = read_recording(path)
    assert (found.best, found.failed) == (2.0, 1)


def test_replay_prints_a_table_for_each_space_and_strategy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_cache(tmp_path / "valley.json", valley())
    args = ["tune", "replay", str(path), "--strategy", "guided", "--strategy", "random", "--seeds", "3"]
    assert run([*args, "--format", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["strategy"] for row in rows] == ["guided", "random"]
    assert rows[0]["configurations"] == 1152
    assert rows[0]["score"] > rows[1]["score"]
    assert run(args) == 0
    assert "valley" in capsys.readouterr().out


def test_replay_of_something_else_exits_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["tune", "replay", str(tmp_path / "nowhere.json")]) == 2
    assert run(["tune", "replay", str(write_cache(tmp_path / "v.json", valley())), "--strategy", "magic"]) == 2
    assert "hint:" in capsys.readouterr().err
