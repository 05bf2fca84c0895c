"""The numbers of a text beside the candidates of `kvbench recommend`: joined by dtype and scales, refused for another
model, and decisive only where there are no numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvbench.analysis.divergence import TokenNumbers
from kvbench.analysis.quality import QualityFile, QualityRow, model_facts
from kvbench.analysis.quality_rows import metrics_of, window_means
from kvbench.cli.main import run
from kvbench.geometry.presets import preset

KL = {("fp32", None): 0.0, ("int8", "token-head"): 3e-5, ("int8", "tensor-absmax"): 8e-5}


def row(kv_dtype: str, kv_scales: str | None, kl: float) -> QualityRow:
    numbers = TokenNumbers(np.full((4, 9), kl), np.full((4, 9), 1.0 + kl), np.full((4, 9), kl < 5e-5))
    metrics = metrics_of(numbers, np.ones((4, 9)), slice(None))
    return QualityRow(kv_dtype, kv_scales, 1.0, metrics, tokens=36, by_window=window_means(numbers))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    rows = [row(*setting, kl) for setting, kl in KL.items()]
    rows.append(QualityRow("fp16", None, 1.0, None, error="logits are not finite at position 3 of window 1"))
    facts = {**model_facts(preset("tiny-llama")), "weight_dtype": "fp32"}
    return write(tmp_path / "quality.json", QualityFile(facts, {}, {}, {}, tuple(rows)))


def write(path: Path, content: QualityFile) -> Path:
    path.write_text(json.dumps(content.to_json()))
    return path


def recommend(capsys: pytest.CaptureFixture[str], file: Path, *more: str, form: str = "json") -> tuple[int, Any]:
    words = ["recommend", "--lengths", "60", "--outputs", "20", "--model", "tiny-llama", "--weights", "fp32"]
    words += ["--kv-memory", "4MiB", "--requests", "30", "--axes", "kv_dtype", "--quality", str(file)]
    code = run([*words, *more, "--format", form])
    shown = capsys.readouterr()
    return code, json.loads(shown.out) if form == "json" and shown.out else shown


def test_every_candidate_has_the_numbers_of_its_own_dtype_and_scales(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, found = recommend(capsys, file, "-a", "kv_dtype=fp32,int8,bf16", "-a", "kv_scales=tensor-absmax")
    by_dtype = {one["kv_dtype"]: one for one in found["candidates"]}
    assert code == 0
    assert by_dtype["int8"]["kl_nats"] == pytest.approx(8e-5)
    assert by_dtype["int8"]["top1_agreement"] == 0.0
    assert by_dtype["fp32"]["kl_nats"] == 0.0
    assert by_dtype["bf16"]["kl_nats"] is None
    assert any("no bf16" in note for note in found["notes"])
    assert "KL 8e-05 nats" in by_dtype["int8"]["refusal"]


def test_a_setting_without_finite_logits_is_never_recommended(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, found = recommend(capsys, file, "-a", "kv_dtype=fp32,fp16,int8", "--allow-lossy")
    by_dtype = {one["kv_dtype"]: one for one in found["candidates"]}
    assert "not finite" in by_dtype["fp16"]["refusal"]
    assert by_dtype["int8"]["refusal"] is None
    assert found["recommendation"]["kv_dtype"] != "fp16"


def test_the_table_shows_them(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, shown = recommend(capsys, file, "-a", "kv_dtype=fp32,int8", form="table")
    assert code == 0
    assert "KL, nats" in shown.out
    assert "3.0e-05" in shown.out


def test_a_file_of_another_model_or_no_file_is_refused(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    facts = {**model_facts(preset("small-llama")), "weight_dtype": "fp32"}
    other = write(tmp_path / "other.json", QualityFile(facts, {}, {}, {}, ()))
    assert recommend(capsys, other, "-a", "kv_dtype=fp32,int8", form="table")[0] == 4
    code, shown = recommend(capsys, tmp_path / "none.json", "-a", "kv_dtype=fp32,int8", form="table")
    assert code == 2
    assert "there is no quality file" in shown.err
