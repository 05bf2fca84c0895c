"""`kvbench fit` and predictions, on runs with planted coefficients."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pandas import DataFrame

from kvbench.analysis.fit import fit_runs
from kvbench.analysis.fit_data import samples_of
from kvbench.cli.main import run as command_line
from kvbench.costmodel.fitted import LeftOut
from kvbench.costmodel.fitted_file import read_fitted
from kvbench.costmodel.profiles import virtual_device
from kvbench.costmodel.roofline import roofline
from kvbench.costmodel.sources import cost_for
from kvbench.errors import CannotRunError, DataError
from kvbench.geometry.presets import preset
from kvbench.store.run import Run
from kvbench.sweep import fitting
from kvbench.sweep.fitting import check, fit_and_check, measured_cases
from kvbench.sweep.predict import METRICS, predict
from tests.costmodel.fitted_samples import fitted_file
from tests.store.test_torch_free import BLOCK
from tests.sweep.synthetic_run import HELD_OUT, SUITE, planted_run

SMALL = SUITE.replace("[4, 16, 64]", "[4]").replace('["continuous", "chunked"]', '["chunked"]')


@pytest.fixture(scope="module")
def exact(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return planted_run(tmp_path_factory.mktemp("exact"))


@pytest.fixture(scope="module")
def held_out(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return planted_run(tmp_path_factory.mktemp("held"), HELD_OUT)


def test_steps_that_follow_the_terms_are_fitted_exactly(exact: Run) -> None:
    """Which of several collinear terms has a price is open; what a step costs is not."""
    found = fit_runs([exact], name="exact")
    for _, residuals in found.residuals():
        assert np.abs(residuals).max() < 1e-6
    ours, true = (
        cost_for(f, preset("tiny-llama"), weight_dtype="fp32", kv_dtype="fp32", block_size=16)
        for f in (found.file, fitted_file())
    )
    for lengths in ([5, 60, 120], [200] * 6):
        features = ours.features(np.array(lengths), np.ones(len(lengths), int), len(lengths), len(lengths))
        assert ours.step_s(features) == pytest.approx(true.step_s(features), rel=1e-3)


def test_cases_that_were_not_seen_are_predicted_exactly_without_noise(exact: Run, held_out: Run) -> None:
    file, _ = fit_and_check([exact], "exact")
    assert len(file.left_out) == len(exact.cases) == 12
    assert max(abs(error) for errors in file.errors.values() for error in errors) < 0.02
    checked = check(file, held_out)
    assert len(checked) == 8
    for case in checked:
        assert case.error is None
        for metric, told in case.predicted.items():
            assert told.value == pytest.approx(case.measured[metric], rel=0.02), (case.label, metric)


def folder(path: Path) -> Path:
    path.mkdir()
    return path


def test_samples_on_a_core_that_others_slowed_are_neither_fitted_nor_held_against_it(
    exact: Run, held_out: Run, tmp_path: Path
) -> None:
    """Every second sample took half as long again, and its row says why."""
    file, found = fit_and_check([planted_run(folder(tmp_path / "a"), repetitions=2, slowed={1: 1.5})], "shared")
    assert [note.split(",")[0] for note in found.notes] == [
        "left out: 12 of 24 samples with K and V as fp32/token-head/hnd"
    ]
    assert {one.sample for one in file.left_out} == {0}
    assert max(abs(error) for errors in file.errors.values() for error in errors) < 0.02
    both = check(file, planted_run(folder(tmp_path / "b"), HELD_OUT, repetitions=2, slowed={0: 1.5}))
    for case, quiet in zip(both, check(file, held_out), strict=True):
        assert case.measured == quiet.measured
        assert len(case.samples) == 1
        assert "measured_slowed" not in [warning.name for warning in case.warnings]


def test_where_every_sample_was_slowed_they_count_and_it_is_said(exact: Run, tmp_path: Path) -> None:
    slow = planted_run(tmp_path, SMALL, slowed={0: 1.5})
    found = fit_runs([slow], name="slow")
    assert found.notes[0].startswith("fitted all the same")
    assert found.file.configurations[0].samples == len(slow.cases)
    file, _ = fit_and_check([exact], "exact")
    for case in check(file, slow):
        assert [w.numbers for w in case.warnings if w.name == "measured_slowed"] == [{"samples": 1}]
        assert case.predicted["ttft_p50_s"].value < 0.9 * case.measured["ttft_p50_s"]


def test_intervals_cover_as_often_as_they_say(tmp_path: Path) -> None:
    """Every process is off by 4 % as a whole, as processes are."""
    file, _ = fit_and_check([planted_run(tmp_path, noise=0.04, seed=1)], "noisy")
    text = HELD_OUT.replace("requests = 25", "requests = 12").replace("[8, 32]", "[6, 8, 12, 24, 32]")
    checked = check(file, planted_run(tmp_path, text, noise=0.04, seed=2))
    covered = [case.predicted[name].covers(case.measured[name]) for case in checked for name in METRICS[:1]]
    assert len(covered) == 20
    assert 0.75 <= np.mean(covered) <= 1.0
    width = np.exp(file.errors["output_tokens_per_s"])
    assert 0.85 < width.min() < width.max() < 1.15


def test_the_time_between_steps_counts_and_idle_time_does_not(exact: Run) -> None:
    _, samples, _ = samples_of([exact])
    steps, cases = exact.steps, exact.cases.set_index("case_id")
    for sample in samples:
        own = steps[steps["case_id"] == sample.case_id]
        assert sample.seconds.sum() == pytest.approx(float(own["duration_s"].sum()), rel=1e-9)
    idle = [s for s in samples if s.seconds.sum() < 0.9 * float(cases.loc[s.case_id, "wall_s"])]
    assert idle  # with Poisson arrivals there is time in which nothing is served


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"device_name": "Another CPU"}, "device_name"),
        ({"threads": 2}, "threads 1 and 2"),
        ({"attention_backend": "torch"}, "attention 'numba' and 'torch'"),
    ],
)
def test_runs_of_different_things_are_not_fitted_together(
    exact: Run, tmp_path: Path, change: dict[str, Any], says: str
) -> None:
    other = planted_run(tmp_path, SMALL, change=lambda row: row.update(change))
    for row in other.case_rows:
        row.update(change)
    with pytest.raises(CannotRunError, match=says):
        fit_runs([exact, other], name="mixed")


def test_runs_of_different_models_are_not_fitted_together(exact: Run, tmp_path: Path) -> None:
    text = SMALL.replace('"tiny-llama"', '"tiny-mha"').replace('"1MiB"', '"2MiB"')
    other = planted_run(tmp_path, text, source=fitted_file("tiny-mha"))
    with pytest.raises(CannotRunError, match="model 'tiny-llama' and 'tiny-mha'"):
        fit_runs([exact, other], name="mixed")


def test_too_few_steps_are_refused(tmp_path: Path) -> None:
    text = SMALL.replace("requests = 24", "requests = 2")
    with pytest.raises(CannotRunError, match="too few to fit"):
        fit_runs([planted_run(tmp_path, text)], name="few")


def with_steps(run: Run, steps: DataFrame) -> Run:
    """The same run with other steps."""

    class Changed(Run):
        def columns_of(self, table: str, columns: Sequence[str]) -> pa.Table:
            if table != "steps":
                return super().columns_of(table, columns)
            return pa.Table.from_pandas(steps[["case_id", "sample", *columns]], preserve_index=False)

    return Changed(run.path)


@pytest.mark.parametrize("name", ["duration_s", "t_s", "decode_reads"])
def test_steps_that_hold_what_is_not_a_number_are_refused(exact: Run, name: str) -> None:
    steps = exact.steps.astype({name: "float64"})
    steps.loc[7, name] = float("nan")
    with pytest.raises(DataError, match=name):
        fit_runs([with_steps(exact, steps)], name="broken")


def test_steps_of_an_older_kvbench_are_refused_with_the_reason(exact: Run) -> None:
    old = with_steps(exact, exact.steps.assign(block_reads=float("nan")))
    with pytest.raises(CannotRunError, match="an older kvbench"):
        fit_runs([old], name="old")


def test_steps_that_took_no_time_are_refused(exact: Run) -> None:
    still = with_steps(exact, exact.steps.assign(duration_s=0.0, t_s=1.0))
    with pytest.raises(DataError, match="no time"):
        fit_runs([still], name="still")
    still = with_steps(exact, exact.steps.assign(duration_s=1e300))
    with pytest.raises(DataError, match="a step took 1e\\+300 s"):
        fit_runs([still], name="endless")
    still = with_steps(exact, exact.steps.assign(batch_size=0))
    with pytest.raises(CannotRunError, match="no step to fit"):
        fit_runs([still], name="empty")


def jobs(run: Run) -> list[Any]:
    return [case.job for case in measured_cases(run)]


def test_outside_the_domain_intervals_are_wider_and_say_why(exact: Run, tmp_path: Path) -> None:
    file, _ = fit_and_check([exact], "exact")
    inside = predict(jobs(exact)[:1], file)[0]
    assert not inside.warnings
    longer = planted_run(tmp_path, SMALL.replace("max = 40 }", "max = 300 }").replace("median = 12", "median = 150"))
    outside = predict(jobs(longer)[:1], file)[0]
    told = {warning.numbers["what"]: warning.numbers for warning in outside.warnings}
    assert told["decode_reads"]["reached"] > told["decode_reads"]["high"]
    assert relative_width(outside) > relative_width(inside)


def test_a_block_size_beyond_those_fitted_is_told(exact: Run, tmp_path: Path) -> None:
    file, _ = fit_and_check([exact], "exact")
    for size, expected in ((8, []), (2, ["block_size"]), (128, ["block_size"])):
        run = planted_run(tmp_path, SMALL.replace('block_size" = [4]', f'block_size" = [{size}]'))
        found = [warning.numbers["what"] for warning in predict(jobs(run)[:1], file)[0].warnings]
        assert [name for name in found if name == "block_size"] == expected


def test_a_setting_that_no_run_had_is_told(exact: Run, tmp_path: Path) -> None:
    file, _ = fit_and_check([exact], "exact")
    cached = planted_run(tmp_path, SMALL.replace("max_sequences", 'prefix_cache = "hash"\nmax_sequences'))
    found = predict(jobs(cached)[:1], file)[0]
    assert [(w.name, w.numbers["what"]) for w in found.warnings] == [("unseen_setting", "prefix_cache")]


def relative_width(prediction: Any) -> float:
    told = prediction.metrics["output_tokens_per_s"]
    return float(told.high / told.low)


def test_a_metric_is_as_uncertain_as_it_depends_on_step_times(exact: Run) -> None:
    """All at once, everything changes as step times do. Arrivals by the clock: throughput is that of the arrivals, and
    waiting changes by more than the steps."""
    file, _ = fit_and_check([exact], "exact")
    file = replace(file, left_out=tuple(uncertain(case) for case in file.left_out))
    kinds = {case.job.case_id: case.job.workload["arrival"]["kind"] for case in measured_cases(exact)}
    for found in predict(jobs(exact), file):
        tokens, first = found.metrics["output_tokens_per_s"], found.metrics["ttft_p50_s"]
        wide = {name: math.log(one.high / one.low) / 2 for name, one in found.metrics.items() if one.high and one.low}
        if kinds[found.case_id] == "all-at-once":
            assert {one.sensitivity for one in found.metrics.values()} == {1.0}
            assert wide["output_tokens_per_s"] == pytest.approx(0.05)
        else:
            assert tokens.sensitivity < 1 < first.sensitivity
            assert wide["output_tokens_per_s"] == pytest.approx(0.05 * max(tokens.sensitivity, 0.1))
            assert wide["ttft_p50_s"] == pytest.approx(0.05 * first.sensitivity)


def uncertain(case: LeftOut) -> LeftOut:
    """Off by 5 % of step time in every metric."""
    return replace(case, metrics={name: (math.exp(0.05), 1.0, 1.0) for name in case.metrics})


def test_a_roofline_predicts_without_intervals_and_says_that_it_is_modelled(exact: Run) -> None:
    found = predict(jobs(exact)[:1], roofline(virtual_device("cpu")))[0]
    assert [warning.name for warning in found.warnings] == ["modelled"]
    assert set(found.metrics) <= set(METRICS)
    assert all(told.low is None and told.high is None for told in found.metrics.values())


def test_a_fit_of_another_model_predicts_nothing(exact: Run) -> None:
    with pytest.raises(CannotRunError, match="another model"):
        predict(jobs(exact)[:1], replace(fitted_file("tiny-mha")))


def fit_command(*arguments: object) -> int:
    return command_line(["fit", *map(str, arguments)])


def test_the_command_writes_a_file_that_the_virtual_clock_takes(
    exact: Run, held_out: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "made" / "fit.json"
    assert fit_command(exact.path, "--out", path, "--name", "mine", "--check", held_out.path) == 0
    printed = capsys.readouterr()
    assert "decode_reads" in printed.out
    assert "each case predicted from all the others" in printed.out
    assert "measured values lie in their intervals" in printed.out
    assert f"fitted model: {path}" in printed.err
    assert fit_command(exact.path, "--out", path, "--name", "mine") == 0  # an earlier fit may go
    capsys.readouterr()
    file = read_fitted(path)
    assert list(file.runs) == [exact.run_id]
    suite = tmp_path / "suite.toml"
    suite.write_text(SMALL)
    chosen = ["--clock", "virtual", "-a", f"cost_model={path}", "--out", str(tmp_path / "out")]
    assert command_line(["sweep", str(suite), *chosen]) == 0
    assert file.label in capsys.readouterr().out


def test_the_default_place_is_the_users_data_folder(
    exact: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KVBENCH_DATA_DIR", str(tmp_path / "data"))
    assert fit_command(exact.path, "--format", "json") == 0
    path = tmp_path / "data" / "fitted" / f"{exact.run_id}.json"
    document = json.loads(capsys.readouterr().out)
    assert document["path"] == str(path)
    assert read_fitted(path).digest == document["digest"]
    assert {term["term"] for term in document["terms"]} >= {"step", "sequences", "decode_reads"}


def test_a_default_place_that_cannot_be_written_is_noticed_before_the_work(
    exact: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "data").write_text("a file")
    monkeypatch.setenv("KVBENCH_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setattr(fitting, "fit_and_check", lambda *_: pytest.fail("worked first"))
    assert fit_command(exact.path) == 2
    assert "is no folder" in capsys.readouterr().err


def test_what_cannot_be_fitted_or_checked_is_refused_in_words(
    exact: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    suite = tmp_path / "suite.toml"
    suite.write_text(SMALL)
    assert command_line(["sweep", str(suite), "--clock", "virtual", "--out", str(tmp_path / "out")]) == 0
    virtual = next((tmp_path / "out").glob("*/plan.json")).parent
    out = tmp_path / "fit.json"
    for arguments, code, says in (
        ([virtual], 2, "is a virtual run"),
        ([exact.path, exact.path], 2, "given twice"),
        ([exact.path, "--check", exact.path], 2, "among the runs that were fitted"),
        ([exact.path, "--check", virtual], 2, "nothing measured to check"),
        ([exact.path, "--name", "../x"], 2, "no name"),
        ([tmp_path], 2, "not a run folder"),
    ):
        capsys.readouterr()
        assert fit_command(*arguments, "--out", out) == code, arguments
        assert says in capsys.readouterr().err, arguments
    assert not out.exists()
    other = planted_run(tmp_path, SMALL, change=lambda row: row.update({"threads": 2}))
    assert fit_command(exact.path, other.path, "--out", out) == 4
    assert "threads 1 and 2" in capsys.readouterr().err
    before = (exact.path / "plan.json").read_bytes()
    assert fit_command(exact.path, "--out", exact.path / "plan.json") == 2
    assert "there already" in capsys.readouterr().err
    assert (exact.path / "plan.json").read_bytes() == before


def test_a_case_that_cannot_be_served_is_fitted_and_named(exact: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    serve_for_real = fitting.predict
    broken = measured_cases(exact)[3]

    def refuses_one(jobs: Any, *rest: Any, **more: Any) -> Any:
        if jobs[0].case_id == broken.job.case_id:
            raise CannotRunError("it cannot be served here")
        return serve_for_real(jobs, *rest, **more)

    monkeypatch.setattr(fitting, "predict", refuses_one)
    file, found = fit_and_check([exact], "exact")
    assert broken.job.case_id not in {case.case_id for case in file.left_out}
    assert file.cases_left_out == 11
    assert f"not predicted from the others: {broken.label}: it cannot be served here" in found.notes
    assert found.file == file


def test_the_fit_needs_no_torch(exact: Run, tmp_path: Path) -> None:
    work = "from kvbench.cli.main import run\nassert run(['fit', *sys.argv[1:]]) == 0"
    command = [sys.executable, "-c", f"{BLOCK}{work}", str(exact.path), "--out", str(tmp_path / "fit.json")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
