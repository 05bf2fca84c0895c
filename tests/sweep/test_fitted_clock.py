"""The virtual clock by a fitted model, from the command line."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvbench.cli.main import run as command_line
from kvbench.costmodel.fitted import Term
from kvbench.costmodel.fitted_file import write_fitted
from kvbench.store.run import Run, open_run
from tests.costmodel.fitted_samples import PLANTED, configuration, fitted_file
from tests.sweep.conftest import MINI


def sweep(tmp_path: Path, *arguments: str, code: int = 0, suite: str = MINI, **changes: Any) -> Run:
    """The small suite under a fitted model's clock."""
    (tmp_path / "mini.toml").write_text(suite.replace('attention = "torch"\n', ""))
    write_fitted(tmp_path / "fit.json", fitted_file(**changes))
    chosen = ["--clock", "virtual", "-a", f"cost_model={tmp_path / 'fit.json'}", "--out", str(tmp_path / "out")]
    assert command_line(["sweep", str(tmp_path / "mini.toml"), *chosen, *arguments]) == code
    return open_run(max((tmp_path / "out").glob("*/plan.json")).parent)


def test_a_fitted_file_drives_the_virtual_clock_and_says_so_everywhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = sweep(tmp_path)
    printed, file = capsys.readouterr(), fitted_file()
    assert set(run.cases["cost_model"]) == {file.label} == {f"fitted planted ({file.digest[:12]})"}
    assert set(run.cases["device_name"]) == {"Some CPU"}
    assert set(run.cases["clock"]) == {"virtual"}
    stated = run.manifest["controlled"]["cost_model"]
    assert (stated["label"], stated["digest"]) == (file.label, file.digest)
    terms = stated["fitted"]["configurations"][0]["terms"]
    assert {name: term["value"] for name, term in terms.items()} == PLANTED
    assert file.label in printed.out
    assert file.label in printed.err


def test_a_step_takes_what_its_recorded_counts_cost(tmp_path: Path) -> None:
    steps = sweep(tmp_path).steps
    decodes = steps[steps["prefill_tokens"] == 0]
    assert len(decodes)
    expected = (
        PLANTED["step"]
        + PLANTED["sequences"] * decodes["batch_size"]
        + PLANTED["tokens_0"] * decodes["decode_tokens"]  # at most 4, the first knot
        + PLANTED["sampled_rows"] * decodes["sampled_rows"]
        + PLANTED["decode_reads"] * decodes["decode_reads"]
        + PLANTED["block_reads"] * decodes["block_reads"]
    )
    assert decodes["duration_s"].to_numpy(float) == pytest.approx(expected.to_numpy(float), rel=1e-9)


def test_a_case_beyond_what_was_fitted_says_so_in_its_row_and_in_the_summary(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("inside", "beyond"):
        (tmp_path / name).mkdir()
    inside = sweep(tmp_path / "inside", "-a", "block_size=16")
    assert "fitted runs had" not in capsys.readouterr().out
    assert not [w for row in inside.case_rows for w in row["warnings"] or () if "outside_domain" in str(w)]
    beyond = sweep(tmp_path / "beyond", "-a", "block_size=128")
    assert "block_size reaches 128, and the fitted runs had 4 to 64" in " ".join(capsys.readouterr().out.split())
    assert all("outside_domain" in str(row["warnings"]) for row in beyond.case_rows)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["-a", "model.name=tiny-mha"], "another model"),
        (["-a", "kv_dtype=int8"], "not as int8"),
        (["-a", "weight_dtype=bf16"], "weights in fp32"),
        (["-a", "attention=torch"], "attention = 'numba'"),
        (["-a", "speculation=prompt-lookup", "-a", "acceptance_rate=0.5", "-a", "outputs=sampled"], "no drafts"),
        (["-a", "prefix_cache=hash", "-a", "offload=host", "-a", "host_memory=1MiB"], "no price for block copies"),
    ],
)
def test_what_was_not_fitted_is_refused_with_the_reason(
    tmp_path: Path, arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write_fitted(tmp_path / "fit.json", fitted_file())
    (tmp_path / "mini.toml").write_text(MINI.replace('attention = "torch"\n', ""))
    chosen = ["--clock", "virtual", "-a", f"cost_model={tmp_path / 'fit.json'}", "--out", str(tmp_path / "out")]
    assert command_line(["sweep", str(tmp_path / "mini.toml"), *chosen, *arguments]) == 4
    assert says in capsys.readouterr().err


def test_kernel_cases_have_no_fitted_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = sweep(tmp_path, code=3, suite=MINI.replace("[workload]", "[kernel]\nbatch = 1\n[workload]"))
    assert set(run.cases[run.cases["kind"] == "kernel"]["status"]) == {"skipped"}
    assert set(run.cases[run.cases["kind"] == "engine"]["status"]) == {"ok"}
    assert "no kernel calls" in capsys.readouterr().err


def test_copies_that_were_fitted_are_priced(tmp_path: Path) -> None:
    fit = configuration()
    fit = replace(
        fit,
        terms={**fit.terms, "host_bytes": Term(1e-9, 1e-9, 1e-9)},
        covariance=tuple((0.0,) * 13 for _ in range(13)),
    )
    tiers = ["-a", "prefix_cache=hash", "-a", "offload=host", "-a", "host_memory=1MiB"]
    assert set(sweep(tmp_path, *tiers, configurations=(fit,)).cases["status"]) == {"ok"}


def test_a_fitted_model_stands_for_no_other_device(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_fitted(tmp_path / "fit.json", fitted_file())
    (tmp_path / "mini.toml").write_text(MINI)
    fit = ["-a", f"cost_model={tmp_path / 'fit.json'}", "--virtual-device", "L4"]
    assert command_line(["sweep", str(tmp_path / "mini.toml"), "--clock", "virtual", *fit]) == 2
    assert "was fitted on Some CPU, not on L4" in capsys.readouterr().err
