"""`kvbench recommend` end to end: on the virtual clock by a datasheet, and by runs with planted step times."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvbench.analysis.advice.decide import Slo
from kvbench.analysis.advice.lengths import LengthSample, Shared
from kvbench.analysis.advice.sources import from_run, from_sides
from kvbench.analysis.conformal import half_width
from kvbench.cli.main import run as command_line
from kvbench.costmodel.fitted import LEAST_SENSITIVITY, FittedFile, slower
from kvbench.costmodel.fitted_file import with_digest, write_fitted
from kvbench.costmodel.sources import cost_for
from kvbench.errors import CannotRunError, DataError, KvbenchError, UsageError
from kvbench.geometry.memory import kv_bytes_per_token
from kvbench.geometry.presets import preset
from kvbench.spec.workload import WorkloadSettings
from kvbench.store.run import Run
from kvbench.sweep.advice.predict import floor_of
from kvbench.sweep.advice.question import Question
from kvbench.sweep.advice.requests import Source
from kvbench.sweep.advice.served import served_by
from kvbench.sweep.advise import advise
from kvbench.workload.build import build_workload
from tests.costmodel.fitted_samples import fitted_file
from tests.sweep.synthetic_run import BLOCK_SIZES_ONLY, SUITE, planted_run

SIZES = (4, 8, 16, 32, 64)
PLAIN = BLOCK_SIZES_ONLY.replace("[4, 16, 64]", "[4, 8, 16, 32, 64]")
OTHER = PLAIN.replace("median = 40", "median = 20").replace("median = 12", "median = 20").replace("24", "30")


@pytest.fixture(autouse=True, scope="module")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Kept fits and tuned kernels of whoever runs the tests stay out of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KVBENCH_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield


def lengths(seed: int = 1, count: int = 40, median: float = 55.0) -> LengthSample:
    rng = np.random.default_rng(seed)
    inputs = np.clip(np.rint(median * np.exp(0.6 * rng.standard_normal(count))), 4, 220).astype(np.int64)
    return LengthSample(inputs, rng.integers(4, 40, count), "mine", "trace", count)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Run]:
    folder = tmp_path_factory.mktemp("planted")
    return planted_run(folder, PLAIN), planted_run(folder, OTHER)


def paths(runs: tuple[Run, ...]) -> tuple[Path, ...]:
    return tuple(run.path for run in runs)


def test_runs_of_other_lengths_choose_what_serving_these_lengths_by_the_planted_times_says(
    runs: tuple[Run, Run],
) -> None:
    sample = lengths()
    found = advise(Question(sample=sample, results=paths(runs)))
    assert found.axes == ("block_size",)
    truth = {}
    for row in found.rows:
        settings = row.settings
        cost = cost_for(
            fitted_file(), preset("tiny-llama"), weight_dtype="fp32", kv_dtype="fp32", block_size=settings.block_size
        )
        requests = found.plan.lists[0].requests
        assert [r.input_tokens for r in requests] == sample.inputs.tolist()  # a short list in its own order
        truth[settings.block_size] = served_by(preset("tiny-llama"), settings, cost, requests, None, 512).tokens_per_s
    assert set(truth) == set(SIZES)
    for row in found.rows:
        assert row.candidate.tokens_per_s is not None
        assert row.candidate.tokens_per_s.value == pytest.approx(truth[row.settings.block_size], rel=0.01)
    chosen = found.chosen
    assert chosen is not None
    assert truth[chosen.settings.block_size] >= 0.99 * max(truth.values())
    assert not found.evidence.is_modelled
    worst = found.decision.worst
    assert worst is not None
    assert truth[found.rows[worst].settings.block_size] == min(truth.values())


def test_every_candidate_has_the_same_pool_bytes_as_the_runs(runs: tuple[Run, Run]) -> None:
    found = advise(Question(sample=lengths(), results=paths(runs)))
    assert {row.exact.pool_bytes for row in found.rows} == {1 << 20}


def test_a_block_size_between_measured_ones_is_interpolated_and_says_so_and_one_outside_is_refused(
    runs: tuple[Run, Run],
) -> None:
    question = Question(sample=lengths(), results=paths(runs), overrides=("block_size=16,24,128",))
    found = advise(question)
    by_size = {row.settings.block_size: row for row in found.rows}
    assert "interpolated" in " ".join(by_size[24].candidate.notes)
    assert "interpolated" not in " ".join(by_size[16].candidate.notes)
    assert by_size[128].candidate.refusal is not None
    assert "never measured: the runs have 4 to 64" in by_size[128].candidate.refusal
    assert found.chosen is not None
    assert found.chosen.settings.block_size != 128


def test_measured_runs_of_the_very_requests_are_used_as_they_are(runs: tuple[Run, Run]) -> None:
    run = runs[0]
    found = advise(Question(sample=from_run(run), results=(run.path,)))
    rates = {
        row["block_size"]: row["output_tokens_per_s"] for row in run.case_values(("block_size", "output_tokens_per_s"))
    }
    assert all(row.is_measured for row in found.rows)
    for row in found.rows:
        assert row.candidate.tokens_per_s is not None
        assert row.candidate.tokens_per_s.value == pytest.approx(rates[row.settings.block_size])
    assert found.decision.verdict == "tied"  # one round tells nothing apart


def test_a_run_with_another_pool_is_no_measurement_of_these_candidates(runs: tuple[Run, Run]) -> None:
    run = runs[0]
    found = advise(Question(sample=from_run(run), results=(run.path,), kv_memory_bytes=1 << 18))
    assert not any(row.is_measured for row in found.rows)
    assert {row.exact.pool_bytes for row in found.rows} == {1 << 18}


def test_rounds_of_different_runs_are_not_paired(tmp_path: Path, runs: tuple[Run, Run]) -> None:
    """8 and 16 in one run, 16 and 32 in another that was twice as slow: no round holds 8 and 32."""
    parts = [
        planted_run(tmp_path, PLAIN.replace("[4, 8, 16, 32, 64]", sizes), repetitions=3, noise=0.01, source=source)
        for sizes, source in (("[8, 16]", fitted_file()), ("[16, 32]", slower(fitted_file(), 2.0)))
    ]
    found = advise(Question(sample=from_run(parts[0]), results=paths(tuple(parts))))
    at = {row.settings.block_size: place for place, row in enumerate(found.rows)}
    assert [len(row.measured) for row in found.rows] == [3, 6, 3]
    truth = advise(Question(sample=from_run(runs[0]), results=(runs[0].path,), overrides=("block_size=8,16,32",)))
    for a, b in ((8, 16), (16, 32), (8, 32)):
        expected = truth.gaps.value[at[a], at[b]]
        assert found.gaps.value[at[a], at[b]] == pytest.approx(expected, abs=0.05)


def test_a_block_size_that_the_pool_has_no_block_of_is_left_out_and_named() -> None:
    question = Question(
        sample=from_sides("20", "8"),
        model="tiny-llama",
        gpu="l4",
        overrides=("block_size=16,64,256", "max_sequences=4"),
        kv_memory_bytes=int(kv_bytes_per_token(preset("tiny-llama"), "bf16")) * 200,
        requests=8,
    )
    found = advise(question)
    assert [row.settings.block_size for row in found.rows] == [16, 64]
    assert any("block_size=256 is left out" in note and "no block of 256 tokens" in note for note in found.notes)
    with pytest.raises(CannotRunError, match="no block of 16 tokens"):
        advise(replace(question, kv_memory_bytes=1))


def test_what_the_runs_vary_and_the_question_leaves_open_is_said(tmp_path: Path) -> None:
    run = planted_run(tmp_path, SUITE.replace("[4, 16, 64]", "[16, 64]"))
    question = Question(sample=lengths(), results=(run.path,))
    told = " ".join(advise(question).notes)
    assert "the runs vary batch_policy (chunked, continuous)" in told
    assert "arrive in several ways (all-at-once, poisson)" in told
    chosen = replace(question, axes=("block_size", "batch_policy"), overrides=("arrival.kind=all-at-once",))
    assert not any("vary" in note or "several ways" in note for note in advise(chosen).notes)


def test_a_model_whose_steps_take_no_time_predicts_nothing(tmp_path: Path) -> None:
    path = tmp_path / "still.json"
    write_fitted(path, with_digest(slower(fitted_file(), 0.0)))
    found = advise(Question(sample=lengths(), results=(path,), overrides=("block_size=16,32",), requests=8))
    assert found.chosen is None
    assert all("take no time" in str(row.candidate.refusal) for row in found.rows)


def test_a_pool_that_turns_away_more_requests_than_another_is_not_recommended(runs: tuple[Run, Run]) -> None:
    per_token = int(kv_bytes_per_token(preset("tiny-llama"), "fp32"))
    sample = replace(lengths(), inputs=np.full(40, 80), outputs=np.where(np.arange(40) < 20, 20, 5))
    found = advise(Question(sample=sample, results=paths(runs), kv_memory_bytes=per_token * 127))
    by_size = {row.settings.block_size: row for row in found.rows}
    assert by_size[4].candidate.refusal is None  # 99 tokens in 25 of 31 blocks of 4
    assert "turns away 20 of the requests" in str(by_size[32].candidate.refusal)  # 3 blocks of 32 hold 96
    assert found.chosen is not None
    assert found.chosen.settings.block_size < 32


def test_a_run_given_twice_and_attention_that_no_run_had_are_refused(runs: tuple[Run, Run]) -> None:
    with pytest.raises(UsageError, match="is given twice"):
        advise(Question(sample=lengths(), results=(runs[0].path, runs[0].path)))
    found = advise(Question(sample=lengths(), results=paths(runs), overrides=("attention=torch",)))
    assert found.chosen is None
    assert all("say nothing about torch" in str(row.candidate.refusal) for row in found.rows)


def test_one_of_a_runs_workloads_is_named_by_its_digest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (
        PLAIN.replace("[4, 8, 16, 32, 64]", "[16, 32]")
        .replace("requests = 24\n", "")
        .replace("[axes]", '[axes]\n"workload.requests" = [12, 24]')
    )
    run = planted_run(tmp_path, text)
    words = ["recommend", "--run", str(run.path), "--results", str(run.path)]
    assert command_line(words) == 2
    assert "--workload" in capsys.readouterr().err
    digest = next(iter(run.lengths))
    assert command_line([*words, "--workload", digest[:10]]) == 0
    assert digest[:12] in capsys.readouterr().out


def test_a_fitted_file_answers_for_its_own_model_and_weights_only_and_says_what_it_does_not_keep(
    tmp_path: Path,
) -> None:
    path = tmp_path / "fit.json"
    write_fitted(path, fitted_file())
    question = Question(sample=from_sides("40", "12"), results=(path,), overrides=("block_size=16,32",), requests=8)
    found = advise(question)
    assert not found.evidence.is_modelled
    assert any("interpolated" in note for note in found.notes)
    for change, word in (
        ({"weight_dtype": "bf16"}, "weights in fp32, not in bf16"),
        ({"model": "tiny-mha"}, "another model"),
    ):
        with pytest.raises(CannotRunError, match=word):
            advise(replace(question, **change))


def test_a_fitted_file_offers_the_settings_that_it_was_fitted_on(tmp_path: Path) -> None:
    path = tmp_path / "fit.json"
    seen = {"prefix_cache": ("hash", "none"), "batch_policy": ("chunked",)}
    write_fitted(path, with_digest(replace(fitted_file(), settings=seen)))
    question = Question(sample=from_sides("40", "12"), results=(path,), overrides=("block_size=16",), requests=8)
    found = advise(replace(question, axes=("block_size", "prefix_cache")))
    assert {row.settings.prefix_cache for row in found.rows} == {"hash", "none"}
    with pytest.raises(UsageError, match="values of batch_policy"):
        advise(replace(question, axes=("batch_policy",)))


def test_without_runs_everything_is_called_modelled(capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "recommend",
        "--lengths",
        "lognormal(300,900)",
        "--outputs",
        "60",
        "--model",
        "llama-3.2-1b",
        "--gpu",
        "l4",
    ]
    assert command_line([*words, "--requests", "60", "-a", "block_size=16,256", "-a", "max_sequences=16"]) == 0
    shown = capsys.readouterr().out
    assert "use             modelled: block_size" in shown
    assert "output tokens/s modelled" in shown
    assert "predicted" not in shown
    assert "no step was measured" in shown


def test_the_same_question_gets_the_same_answer(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["recommend", "--lengths", "200", "--outputs", "lognormal(40,90)", "--model", "tiny-llama", "--gpu", "l4"]
    words += ["--requests", "40", "-a", "block_size=16,64", "-a", "max_sequences=8", "--kv-memory", "4MiB", "--format"]
    shown = []
    for _ in range(2):
        assert command_line([*words, "json"]) == 0
        shown.append(json.loads(capsys.readouterr().out))
    assert shown[0] == shown[1]
    assert shown[0]["recommendation"] in ({"block_size": 16}, {"block_size": 64})
    assert command_line([*words, "csv"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 3


def test_objectives_that_nobody_meets_are_an_answer_of_no(
    runs: tuple[Run, Run], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "lengths.csv"
    rows = zip(lengths().inputs.tolist(), lengths().outputs.tolist(), strict=True)
    trace.write_text("num_prefill_tokens,num_decode_tokens\n" + "".join(f"{a},{b}\n" for a, b in rows))
    words = ["recommend", "--trace", str(trace), "--results", str(runs[0].path), "--slo", "ttft=1us"]
    assert command_line(words) == 1
    assert "no candidate meets the objectives" in capsys.readouterr().out
    found = advise(Question(sample=lengths(), results=paths(runs), slo=Slo(ttft_s=1e9)))
    assert found.chosen is not None


def test_a_lossy_dtype_is_recommended_only_when_it_was_allowed() -> None:
    base = Question(
        sample=from_sides("300", "lognormal(60,120)"),
        model="llama-3.2-1b",
        gpu="l4",
        axes=("block_size", "kv_dtype"),
        overrides=("block_size=16", "kv_dtype=bf16,int8", "max_sequences=16"),
        kv_memory_bytes=32 << 20,
        requests=40,
    )
    strict, lossy = advise(base), advise(replace(base, allow_lossy=True))
    by_dtype = {row.settings.kv_dtype: row for row in strict.rows}
    assert by_dtype["bf16"].candidate.refusal is None
    assert "lossy KV was not allowed" in str(by_dtype["int8"].candidate.refusal)
    assert strict.chosen is by_dtype["bf16"]
    assert lossy.chosen is not None
    assert lossy.chosen.settings.kv_dtype == "int8"  # twice the sequences


def test_results_of_another_model_or_device_are_refused_by_name(runs: tuple[Run, Run], tmp_path: Path) -> None:
    for question, word in (
        (Question(sample=lengths(), results=paths(runs), model="tiny-qwen2"), "the question is about tiny-qwen2"),
        (Question(sample=lengths(), results=paths(runs), gpu="h100"), "the question is about h100"),
        (Question(sample=lengths(), results=paths(runs), tp=2), "--tp 2"),
    ):
        with pytest.raises(CannotRunError, match=word):
            advise(question)
    fitted = tmp_path / "fit.json"
    write_fitted(fitted, fitted_file())
    for question, word in (
        (Question(sample=lengths(), results=(fitted,), gpu="h100"), "measured on Some CPU, and the question is about"),
        (Question(sample=lengths(), results=(fitted,), tp=2), "--tp 2"),
    ):
        with pytest.raises(CannotRunError, match=word):
            advise(question)
    with pytest.raises(UsageError, match="weights in fp32, not in bf16"):
        advise(Question(sample=lengths(), results=paths(runs), weight_dtype="bf16"))


def test_runs_without_a_throughput_are_bad_data(tmp_path: Path) -> None:
    def lose(row: dict[str, object]) -> None:
        row["output_tokens_per_s"] = math.nan

    run = planted_run(tmp_path, PLAIN.replace("[4, 8, 16, 32, 64]", "[16, 32]"), change=lose)
    with pytest.raises(DataError, match="no engine case ended well"):
        advise(Question(sample=lengths(), results=(run.path,)))


def test_lengths_beyond_the_context_are_left_out_with_their_number_and_all_of_them_are_refused(
    runs: tuple[Run, Run],
) -> None:
    sample = lengths()
    long = replace(sample, inputs=np.where(np.arange(len(sample)) < 5, 600, sample.inputs))
    found = advise(Question(sample=long, results=paths(runs)))
    assert any("5 of 40 requests" in note for note in found.notes)
    with pytest.raises(UsageError, match="all 40 requests are longer than"):
        advise(Question(sample=replace(sample, inputs=sample.inputs + 600), results=paths(runs)))


def test_one_row_is_answered_with_the_note_that_it_is_no_distribution(
    runs: tuple[Run, Run], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "one.csv"
    trace.write_text("num_prefill_tokens,num_decode_tokens\n50,10\n")
    assert command_line(["recommend", "--trace", str(trace), "--results", str(runs[0].path)]) == 0
    assert "no distribution" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "nothing says how long requests are"),
        (["--lengths", "10", "--outputs", "5", "--run", "x"], "are different lengths"),
        (["--lengths", "10"], "nothing how long outputs are"),
        (["--trace", "{empty}"], "empty"),
        (["--lengths", "10", "--outputs", "5", "--slo", "speed=2"], "--slo"),
        (["--lengths", "10", "--outputs", "5", "--axes", "colour"], "no axis 'colour'"),
        (["--lengths", "10", "--outputs", "5", "--axes", ","], "--axes names no setting"),
        (
            ["--lengths", "10", "--outputs", "5", "--model", "tiny-llama", "--axes", "offload"],
            "which values of offload",
        ),
        (["--lengths", "10", "--outputs", "5", "-a", "block_size=0"], "block_size"),
        (["--lengths", "10", "--outputs", "5", "--results", "{empty}.gone"], "nothing of that name"),
        (["--lengths", "10", "--outputs", "5", "--model", "no-such-model"], "no-such-model"),
        (["--lengths", "10", "--outputs", "5", "--gpu", "abacus"], "abacus"),
        (["--lengths", "10", "--outputs", "5", "--trace-format", "azure"], "--trace-format is for --trace"),
        (["--lengths", "10", "--outputs", "5", "--limit", "3"], "--limit is for --trace"),
        (["--lengths", "10", "--outputs", "5", "--rounds", "3"], "--rounds is for --measure"),
        (["--lengths", "10", "--outputs", "5", "--out", "{empty}.runs"], "--out is for --measure"),
        (["--lengths", "10", "--outputs", "5", "--workload", "ab"], "--workload is for --run"),
        (["--run", "x", "--outputs", "5"], "a run has outputs of its own"),
        (["--lengths", "10", "--outputs", "5", "--memory", "1GiB", "--kv-memory", "1MiB"], "two sizes of one pool"),
        (["--lengths", "10", "--outputs", "5", "-a", "workload.requests=9"], "workload.requests is not read here"),
        (["--trace", "{plain}", "--outputs", "5"], "nothing is left to draw"),
    ],
)
def test_bad_questions_are_usage_errors(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    empty = tmp_path / "empty.csv"
    empty.write_text("")
    plain = tmp_path / "plain.csv"
    plain.write_text("num_prefill_tokens,num_decode_tokens\n50,10\n60,20\n")
    assert command_line(["recommend", *(word.format(empty=empty, plain=plain) for word in words)]) == 2
    assert said in capsys.readouterr().err


def test_flags_of_a_server_stand_beside_the_answer(capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "recommend",
        "--lengths",
        "200",
        "--outputs",
        "20",
        "--model",
        "tiny-llama",
        "--gpu",
        "l4",
        "--requests",
        "20",
    ]
    assert command_line([*words, "-a", "block_size=16,64", "-a", "max_sequences=8", "--emit", "vllm"]) == 0
    assert "--max-model-len" not in (told := capsys.readouterr().out)
    assert "--block-size" in told
    assert command_line([*words, "-a", "block_size=16", "-a", "max_context=2048", "--emit", "vllm"]) == 0
    assert "--max-model-len 2048" in capsys.readouterr().out


def test_a_pool_that_holds_no_request_is_refused_with_the_arithmetic() -> None:
    with pytest.raises(KvbenchError):
        advise(Question(sample=lengths(), model="llama-3.1-8b", gpu="l4", memory_bytes=1 << 30))


def test_it_needs_no_torch_and_a_trace_of_lengths_no_pandas(tmp_path: Path) -> None:
    trace = tmp_path / "plain.csv"
    trace.write_text("num_prefill_tokens,num_decode_tokens\n50,10\n60,20\n")
    code = (
        "import sys; sys.modules.update(dict.fromkeys(('torch', 'triton', 'numba', 'pandas')));"
        "from kvbench.cli.main import run;"
        f"words = 'recommend --trace {trace} --model tiny-llama --gpu l4 -a block_size=16,64';"
        "sys.exit(run(words.split()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_requests_that_come_more_slowly_than_they_are_served_leave_no_throughput_to_choose_by(
    runs: tuple[Run, Run],
) -> None:
    """Errors about step times do not move a throughput that arrivals decide."""
    sample = lengths(count=12)
    slow = advise(Question(sample=sample, results=paths(runs), overrides=("arrival.kind=poisson", "rate=0.01")))
    assert {row.candidate.label for row in slow.rows} == {f"block_size={size}" for size in SIZES}
    first = slow.rows[0].candidate.tokens_per_s
    assert first is not None
    for row in slow.rows:
        assert row.candidate.tokens_per_s is not None
        assert row.candidate.tokens_per_s.value == pytest.approx(first.value, rel=1e-3)
    assert slow.decision.verdict == "tied"
    assert slow.chosen is not None
    assert slow.chosen.settings.block_size == 16


def test_a_cache_that_no_run_had_is_predicted_with_wider_intervals_and_says_so(runs: tuple[Run, Run]) -> None:
    question = Question(
        sample=lengths(),
        results=paths(runs),
        axes=("block_size", "prefix_cache"),
        overrides=("block_size=16", "prefix_cache=none,hash"),
    )
    found = advise(question)
    plain, cached = found.rows
    assert not any("does not know what it costs" in note for note in plain.candidate.notes)
    assert any("prefix_cache = hash" in note and "interval is wider" in note for note in cached.candidate.notes)
    assert cached.prediction.factor == pytest.approx(plain.prediction.factor + 0.5, abs=0.05)
    assert found.gaps.half[0, 1] == pytest.approx(floor_of(found.evidence) * cached.prediction.factor)


def test_brackets_of_a_prediction_are_those_of_kvbench_fit(runs: tuple[Run, Run]) -> None:
    """Half of a bracket by the rule of `analysis/conformal.py`, where two workloads are no more than two errors."""
    found = advise(Question(sample=lengths(), results=paths(runs)))
    expected = half_width(list(found.evidence.errors.values()), 0.90, groups=2)
    assert expected is not None
    for row in found.rows:
        rate = row.candidate.tokens_per_s
        assert rate is not None
        assert math.log(rate.high / rate.value) == pytest.approx(expected * row.prediction.factor)
        assert math.log(rate.value / rate.low) == pytest.approx(expected * row.prediction.factor)


SHARING = [(0, [1, 2, 3]), (1, [1, 2, 4]), (2, [5, 6, 7]), (3, [1, 2, 4]), (4, [8, 9, 10])]


def sharing_trace(folder: Path) -> Path:
    """Prompts of three blocks of 512 tokens; the first one finds nothing."""
    path = folder / "sharing.jsonl"
    rows = [
        {"timestamp": at * 10, "input_length": 1536, "output_length": 8, "hash_ids": ids, "type": "text"}
        for at, ids in SHARING
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def ask(capsys: pytest.CaptureFixture[str], *words: object) -> dict[str, Any]:
    assert command_line(["recommend", *map(str, words), "--format", "json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_without_a_measurement_an_interval_is_called_an_assumption(capsys: pytest.CaptureFixture[str]) -> None:
    found = ask(capsys, "--lengths", 200, "--outputs", 20, "--model", "tiny-llama", "--gpu", "l4", "--requests", 20)
    assert "assumed to be" in found["because"]
    assert "95 % interval" not in found["because"]
    assert {one["decode_step_kind"] for one in found["candidates"]} == {"modelled"}
    assert found["evidence"]["arrival"] == {"kind": "closed-loop", "clients": 256}


def test_more_clients_than_fit_are_said_to_wait_and_the_note_names_the_way_out(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["--lengths", 200, "--outputs", 20, "--model", "tiny-llama", "--gpu", "l4", "--requests", 20]
    words += ["--kv-memory", "256KiB", "-a", "block_size=16,32"]
    note = next(note for note in ask(capsys, *words)["notes"] if "TTFT is mostly waiting" in note)
    way_out = next(word for word in note.split() if word.startswith("arrival.clients="))
    assert not any("mostly waiting" in one for one in ask(capsys, *words, "-a", way_out)["notes"])


def test_what_the_requests_served_share_is_held_against_what_all_share(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--trace", sharing_trace(tmp_path), "--trace-format", "mooncake", "--model", "tiny-llama", "--gpu", "l4"]
    words += ["-a", "block_size=64"]
    cached = [*words, "--axes", "block_size,prefix_cache", "-a", "prefix_cache=none,hash"]
    fewer = ask(capsys, *cached, "--requests", 1)
    assert any("at most 0.0% of the prompt tokens of the 1 requests served" in note for note in fewer["notes"])
    assert not any("at most" in note for note in ask(capsys, *cached)["notes"])
    assert any("no candidate has a prefix cache" in note for note in ask(capsys, *words)["notes"])
    assert command_line(["recommend", *map(str, cached)]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("64 ")]
    assert ["–" in line.split() for line in lines] == [True, False]  # no cache loses no hits


def test_a_run_of_the_same_lengths_that_shares_otherwise_is_no_measurement_of_a_prefix_cache(tmp_path: Path) -> None:
    text = PLAIN.replace("[4, 8, 16, 32, 64]", "[16, 32]").replace(
        "max_sequences", 'prefix_cache = "hash"\nmax_sequences'
    )
    run = planted_run(tmp_path, text)
    question = Question(sample=from_run(run), results=(run.path,))
    assert all(row.is_measured for row in advise(question).rows)
    fronts = Shared(np.minimum(question.sample.inputs, 16), None)
    other = advise(replace(question, sample=replace(question.sample, shared=fronts)))
    assert not any(row.is_measured for row in other.rows)


SHARED = PLAIN.replace("[workload]", "[workload]\nprefix = { groups = 2, tokens = 120 }")


def test_a_prefix_cache_is_valued_by_serving_a_runs_own_requests(runs: tuple[Run, Run], tmp_path: Path) -> None:
    asked = planted_run(tmp_path, SHARED.replace("[4, 8, 16, 32, 64]", "[16]"))
    sample = from_run(asked)
    axes, given = ("block_size", "prefix_cache"), ("block_size=16", "prefix_cache=none,hash")
    found = advise(Question(sample=sample, run=asked.path, results=paths(runs), axes=axes, overrides=given))
    stored = asked.requests_of(str(sample.digest))
    cost = cost_for(found.evidence.source, preset("tiny-llama"), weight_dtype="fp32", kv_dtype="fp32", block_size=16)
    rates = []
    for row in found.rows:
        by_hand = served_by(preset("tiny-llama"), row.settings, cost, stored, None, 512).tokens_per_s
        rates.append(row.prediction.outcomes[0].tokens_per_s)
        assert rates[-1] == pytest.approx(by_hand, rel=1e-12)
    assert rates[1] > 1.3 * rates[0]  # two in three prompt tokens are shared


@pytest.mark.parametrize(
    "arrival",
    [
        {"kind": "poisson", "rate": 5.0},
        {"kind": "closed-loop", "clients": 3, "think_time_s": 0.5, "think": "exponential"},
    ],
)
def test_a_runs_requests_arrive_as_the_workload_made_anew_would(tmp_path: Path, arrival: dict[str, Any]) -> None:
    text = SHARED.replace("[4, 8, 16, 32, 64]", "[16]").replace("requests = 24", "requests = 9")
    run = planted_run(tmp_path, text.replace("[workload]", "[workload]\nsessions = { turns = 2, think_time_s = 1.0 }"))
    settings = WorkloadSettings.model_validate({**run.plan["cases"][0]["workload"], "arrival": arrival})
    assert Source(run.path, from_run(run).digest).first(7, settings) == build_workload(settings).requests[:7]


def test_latencies_of_arrivals_by_rate_are_bracketed_by_serving_with_slower_steps(runs: tuple[Run, Run]) -> None:
    given = ("block_size=16", "arrival.kind=poisson", "arrival.rate=300")
    found = advise(Question(sample=lengths(), results=paths(runs), overrides=given))
    source = found.evidence.source
    assert isinstance(source, FittedFile)
    ((row,), (one,)) = found.rows, found.plan.lists
    outcomes = [
        served_by(
            preset("tiny-llama"),
            row.settings,
            cost_for(file, preset("tiny-llama"), weight_dtype="fp32", kv_dtype="fp32", block_size=16),
            one.requests,
            None,
            512,
        )
        for file in (source, slower(source, 1.05))
    ]
    half = half_width(list(found.evidence.errors.values()), 0.90, groups=2)
    assert half is not None
    for name, found_range in (("ttft_s", row.candidate.ttft_s), ("tpot_s", row.candidate.tpot_s)):
        change = math.log(getattr(outcomes[1], name) / getattr(outcomes[0], name)) / math.log(1.05)
        assert name != "ttft_s" or abs(change - 1.0) > 0.02
        assert found_range is not None
        wide = half * max(abs(change), LEAST_SENSITIVITY) * row.prediction.factor
        assert math.log(found_range.high / found_range.value) == pytest.approx(wide)


def test_decode_steps_that_are_compared_have_the_same_batch(runs: tuple[Run, Run]) -> None:
    """Pools of 64-token blocks hold fewer sequences; the sentence is about one batch all the same."""
    sample = lengths()
    found = advise(Question(sample=sample, results=paths(runs)))
    assert len({round(row.prediction.outcomes[0].active_mean, 6) for row in found.rows}) > 1
    assert len({row.prediction.step_batch for row in found.rows}) == 1
    batch = found.rows[0].prediction.step_batch
    length = round(float((sample.inputs + sample.outputs / 2).mean()))
    for row in found.rows:
        cost = cost_for(
            found.evidence.source,
            preset("tiny-llama"),
            weight_dtype="fp32",
            kv_dtype="fp32",
            block_size=row.settings.block_size,
        )
        assert row.prediction.step_s == pytest.approx(float(cost.decode_run_s(np.full(batch, length), 1)[0]))
