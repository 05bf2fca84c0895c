"""`kvbench quality` from the command line: the four formats, the file, and what is refused."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kvbench.analysis.quality import read_quality
from kvbench.analysis.window_means import Estimate
from kvbench.cli.main import run
from kvbench.cli.quality_tables import _percent, _scientific
from kvbench.errors import DataError, UsageError
from kvbench.geometry.huggingface import geometry_from_folder

QUICK = ["--windows", "3", "--kv-dtype", "int8", "--kv-dtype", "fp16"]
SETTINGS = [
    ("fp32", None),
    ("fp16", None),
    ("int8", "token-head"),
    ("int8", "tensor-absmax"),
    ("int8", "tensor-percentile"),
]


def quality(checkpoint: Path, *more: str | Path) -> int:
    return run(["quality", "--model", str(checkpoint), *map(str, more)])


@pytest.fixture(scope="session")
def written(checkpoint: Path, page: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("quality") / "quality.json"
    assert quality(checkpoint, "--text", page, "--out", path, *QUICK) == 0
    return path


def test_the_table_has_four_numbers_for_every_setting(
    checkpoint: Path, page: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert quality(checkpoint, "--text", page, *QUICK) == 0
    out = capsys.readouterr().out
    for name in ("KL, nats", "perplexity change", "same top-1", "tensor-percentile", "0 (reference)", "device cpu"):
        assert name in out
    assert "by position" in out


def test_csv_and_markdown_have_the_same_settings(
    checkpoint: Path, page: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert quality(checkpoint, "--text", page, *QUICK, "--format", "csv") == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [(row["kv_dtype"], row["kv_scales"] or None) for row in rows if row["positions"] == "all"] == SETTINGS
    assert {row["positions"] for row in rows} == {"all", "1-31", "32-63", "64-95"}
    assert quality(checkpoint, "--text", page, *QUICK, "--format", "md") == 0
    assert capsys.readouterr().out.count("| int8 |") == 6


def test_the_same_question_has_the_same_answer(
    checkpoint: Path, page: Path, written: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert quality(checkpoint, "--text", page, *QUICK, "--format", "json") == 0
    assert json.loads(capsys.readouterr().out) == json.loads(written.read_text())


def test_ids_give_what_their_text_gives(
    checkpoint: Path, page: Path, written: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "ids.npy", np.frombuffer(page.read_bytes(), np.uint8))
    assert quality(checkpoint, "--tokens", tmp_path / "ids.npy", *QUICK, "--format", "json") == 0
    assert json.loads(capsys.readouterr().out)["rows"] == json.loads(written.read_text())["rows"]


def test_the_file_is_read_back_and_knows_its_model(checkpoint: Path, written: Path) -> None:
    found = read_quality(written)
    assert [(row.kv_dtype, row.kv_scales) for row in found.rows] == SETTINGS
    assert found.row("bf16") is None
    assert found.row("float16", "tensor-absmax") == found.row("fp16")
    row = found.row("int8", "tensor-absmax")
    assert row is not None
    assert row.metrics is not None
    assert row.metrics.kl_nats.low <= row.metrics.kl_nats.value <= row.metrics.kl_nats.high
    assert row.metrics.kl_nats.value == pytest.approx(np.mean(row.by_window["kl_nats"]))
    assert row.scales["tokens"] == 96 * found.method["calibration_windows"]
    assert found.text["files"][0]["name"] == "measurement.md"
    assert set(found.model["files"]) == {"config.json", "model.safetensors"}
    geometry = geometry_from_folder(checkpoint)
    assert found.why_not(geometry) is None
    assert "num_layers" in str(found.why_not(replace(geometry, num_layers=7)))


def test_an_edited_file_is_refused(written: Path, tmp_path: Path) -> None:
    whole = json.loads(written.read_text())
    path = tmp_path / "edited.json"
    for change, error in (
        ({"rows": []}, DataError),
        ({"text": {"tokens": float("nan")}}, DataError),
        ({"version": 99}, UsageError),
        ({"format": "another"}, UsageError),
    ):
        path.write_text(json.dumps(whole | change))
        with pytest.raises(error):
            read_quality(path)
    for text in ("", "[]", "{"):
        path.write_text(text)
        with pytest.raises(UsageError):
            read_quality(path)
    with pytest.raises(UsageError):
        read_quality(tmp_path / "none.json")


def said(capsys: pytest.CaptureFixture[str]) -> str:
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "Traceback" not in shown.err
    return shown.err


def test_what_cannot_be_is_said_with_its_way_out(
    checkpoint: Path, page: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "short.txt").write_text("too short")
    (tmp_path / "ids.txt").write_text("1 2 900 " * 500)
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    for arguments, message in (
        ([checkpoint, "--text", tmp_path / "short.txt"], "too short"),
        ([checkpoint, "--text", tmp_path / "none.txt"], "no file"),
        ([checkpoint, "--text", tmp_path], "cannot be read"),
        ([checkpoint, "--tokens", tmp_path / "ids.txt"], "outside the model's vocabulary"),
        ([checkpoint, "--text", page, "--window-tokens", "97"], "context"),
        ([checkpoint], "--text or --tokens"),
        ([checkpoint, "--text", page, "--tokens", page], "not both"),
        ([checkpoint, "--text", page, "--out", tmp_path / "none" / "x.json"], "no folder"),
        ([checkpoint, "--text", tmp_path / "short.txt", "--out", tmp_path / "short.txt"], "there already"),
        ([checkpoint, "--text", page, "--out", "/dev/null"], "no regular file"),
        ([tmp_path / "nothing", "--text", page], "is no folder"),
        ([checkpoint / "config.json", "--text", page], "is no folder"),
        ([tmp_path, "--text", page], "'bert' is not supported"),
    ):
        assert quality(*arguments) == 2, message
        assert message in said(capsys)
    assert (tmp_path / "short.txt").read_text() == "too short"


def test_intervals_that_end_at_the_possible_are_shown_by_their_ends() -> None:
    assert _scientific(Estimate(2e-4, 1e-4, 3e-4)) == "(2.00 ± 1.00)e-04"
    assert _scientific(Estimate(2e-4, 0.0, 7.1e-4)) == "2.00e-04 (0–0.00071)"
    assert _percent(Estimate(0.99, 0.97, 1.0)) == "99.000% (97.000% to 100.000%)"
    assert _percent(Estimate(-0.002, -0.003, -0.001), "+") == "-0.200% ± 0.100%"
    assert _percent(Estimate(1.0)) == "100.000%"


def test_a_result_that_cannot_be_written_is_still_shown(
    checkpoint: Path, page: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("kvbench.store.targets.replacing", full)
    assert quality(checkpoint, "--text", page, *QUICK, "--out", tmp_path / "x.json") == 4
    shown = capsys.readouterr()
    assert "KL, nats" in shown.out
    assert "no space left" in shown.err


def test_bytes_that_are_no_text_are_still_bytes(checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "noise").write_bytes(np.random.default_rng(0).bytes(700))
    assert quality(checkpoint, "--text", tmp_path / "noise", "--windows", "2", "--kv-dtype", "fp16") == 0


def test_weights_that_are_no_numbers_exit_5(
    checkpoint: Path, page: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from safetensors.torch import load_file, save_file

    tensors = load_file(checkpoint / "model.safetensors")
    tensors["model.norm.weight"][3] = float("nan")
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    (tmp_path / "config.json").write_bytes((checkpoint / "config.json").read_bytes())
    assert quality(tmp_path, "--text", page, *QUICK) == 5
    assert "not finite at position 0 of window 1" in said(capsys)


def test_a_setting_that_overflows_is_given_up_and_the_rest_is_told(
    checkpoint: Path, page: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """V too large for fp16, with an output projection as much smaller: the same model in fp32."""
    from safetensors.torch import load_file, save_file

    tensors = load_file(checkpoint / "model.safetensors")
    tensors["model.layers.0.self_attn.v_proj.weight"] *= 2.0**20
    tensors["model.layers.0.self_attn.o_proj.weight"] *= 2.0**-20
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    (tmp_path / "config.json").write_bytes((checkpoint / "config.json").read_bytes())
    out = tmp_path / "quality.json"
    assert quality(tmp_path, "--text", page, *QUICK, "--out", out) == 3
    assert "Given up" in capsys.readouterr().out
    found = read_quality(out)
    assert found.row("fp16").metrics is None
    assert "not finite" in found.row("fp16").error
    assert 0 < found.row("int8").metrics.kl_nats.value < 1e-2
