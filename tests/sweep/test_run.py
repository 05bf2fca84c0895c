"""A suite measured for real: what lands in the run folder, and what a second start keeps."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest

import kvbench
from kvbench.errors import CannotRunError, UsageError
from kvbench.measure.job import sample_row
from kvbench.spec.load import LoadedSuite
from kvbench.store.parts import Sample
from kvbench.store.run_folder import RunFolder
from kvbench.sweep import case_job, machine, resolve
from kvbench.sweep.planner import make_plan
from kvbench.sweep.run import run_suite
from tests.checkpoints import write_checkpoint

Mini = Callable[..., LoadedSuite]


def test_every_case_ends_as_rows_that_agree_with_each_other(mini: Mini, tmp_path: Path) -> None:
    run = run_suite(mini(), out=tmp_path / "out")
    assert list(run.cases["status"]) == ["ok", "ok"]
    assert list(run.cases["block_size"]) == [4, 16]
    assert set(run.cases["cache_state"]) == {"cold"}
    for _, case in run.cases.iterrows():
        requests = run.requests[run.requests["case_id"] == case["case_id"]]
        steps = run.steps[run.steps["case_id"] == case["case_id"]]
        workload = run.workload[run.workload["workload_digest"] == case["workload_digest"]]
        assert sorted(requests["input_tokens"]) == sorted(workload["input_tokens"])
        assert requests["output_tokens"].sum() == case["output_tokens_total"] == 4 * 4
        assert steps["prefill_tokens"].sum() == workload["input_tokens"].sum()
        # the first output token of a request comes out of its prefill
        assert steps["decode_tokens"].sum() == 4 * 3
        assert (steps["kv_blocks_total"] * 0 + case["kv_blocks_total"] == steps["kv_blocks_total"]).all()


def test_the_manifest_names_every_file_by_its_digest(mini: Mini, tmp_path: Path) -> None:
    run = run_suite(mini(), out=tmp_path / "out")
    named = run.manifest["files"]
    assert {"cases.parquet", "requests.parquet", "steps.parquet", "workload.parquet", "plan.json"} <= named.keys()
    for name, digest in named.items():
        assert hashlib.sha256((run.path / name).read_bytes()).hexdigest() == digest


def test_the_python_door_is_the_same_run(mini: Mini, tmp_path: Path) -> None:
    run = kvbench.run_suite(mini(('"engine.block_size" = [4, 16]', '"engine.block_size" = [4]')), out=tmp_path)
    again = kvbench.open_run(run.path)
    assert again.cases.equals(run.cases)


def test_m01_more_repetitions_keep_those_that_are_there(mini: Mini, tmp_path: Path) -> None:
    """A finished run of 1 repetition is resumed with 2: the missing ones run, the first are kept as they were."""
    first = run_suite(mini(), out=tmp_path)
    before = first.cases.set_index("case_id")["started_at"].to_dict()
    second = run_suite(mini(), resume=first.path, repetitions=2)
    assert second.path == first.path
    assert sorted(zip(second.cases["block_size"], second.cases["sample"], strict=True)) == [
        (4, 0), (4, 1), (16, 0), (16, 1),
    ]  # fmt: skip
    kept = second.cases[second.cases["sample"] == 0].set_index("case_id")["started_at"]
    assert kept.to_dict() == before


def test_m02_a_changed_fixed_setting_is_recognised_by_content(mini: Mini, tmp_path: Path) -> None:
    """Other output lengths, same folder: every case is measured anew, no old row stands in for it."""
    first = run_suite(mini(), out=tmp_path)
    before = set(first.cases["case_id"])
    second = run_suite(mini(("output_tokens = 4", "output_tokens = 5")), resume=first.path)
    assert not set(second.cases["case_id"]) & before
    assert list(second.cases["output_tokens_total"]) == [20, 20]


def test_m03_a_failed_repetition_is_taken_again_and_the_others_are_kept(mini: Mini, tmp_path: Path) -> None:
    """One sample of two failed; resume retries that one."""
    plan = make_plan(mini())
    with RunFolder.create(tmp_path, plan.to_dict()) as folder:
        bad = plan.cases[0].job
        folder.add(Sample(bad.case_id, 0, bad.fingerprint, sample_row(bad, "crash", "killed")))
        path = folder.path
    half = run_suite(mini(), resume=path).cases
    assert list(half["status"]) == ["ok", "ok"]
    whole = run_suite(mini(), resume=path).cases
    assert list(whole["started_at"]) == list(half["started_at"])


@pytest.mark.parametrize("changed", ["kernel_digest", "engine_digest"])
def test_m04_other_code_is_another_sample(
    mini: Mini, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: str
) -> None:
    """A kernel's source changes between run and resume: the cases that use it run anew."""
    run = run_suite(mini(), out=tmp_path)
    first = run.cases
    monkeypatch.setattr(case_job, changed, lambda: "other code")
    second = run_suite(mini(), resume=run.path).cases
    assert set(second["case_id"]) == set(first["case_id"])
    assert not set(second["started_at"]) & set(first["started_at"])
    assert (run.path / "superseded").is_dir()


def test_m12_repetitions_are_outermost_and_the_shuffled_order_is_in_the_manifest(mini: Mini, tmp_path: Path) -> None:
    """Repetition by repetition, cases shuffled within, the same order for the same seed, recorded as it happened."""
    suite = mini(('"engine.block_size" = [4, 16]', '"engine.block_size" = [2, 4, 8, 16]'))
    run = run_suite(suite, out=tmp_path, repetitions=2)
    order = [(case_id, sample) for case_id, sample, _ in run.manifest["volatile"]["order"]]
    assert [sample for _, sample in order] == [0] * 4 + [1] * 4
    rounds = [[case_id for case_id, sample in order if sample == number] for number in (0, 1)]
    assert rounds == run.plan["order"]
    assert sorted(rounds[0]) == sorted(rounds[1])
    listed = [case["case_id"] for case in run.plan["cases"]]
    assert rounds != [listed, listed]
    assert make_plan(suite, repetitions=2).to_dict()["order"] == run.plan["order"]


def test_auto_kv_memory_stays_what_it_was_when_a_run_is_resumed(
    mini: Mini, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other memory is free by then; the samples that are there still count and later ones get the same bytes."""
    suite = mini(('kv_memory = "1MiB"', 'kv_memory = "auto"'))
    monkeypatch.setattr(machine, "free_memory_bytes", lambda kind: 64 << 20)
    first = run_suite(suite, out=tmp_path)
    monkeypatch.setattr(machine, "free_memory_bytes", lambda kind: 128 << 20)
    second = run_suite(suite, resume=first.path)
    assert list(second.cases["started_at"]) == list(first.cases["started_at"])
    assert second.plan["auto_kv_memory_bytes"] == first.plan["auto_kv_memory_bytes"] > 0


def test_auto_kv_memory_is_what_the_neediest_case_leaves_in_any_order(
    mini: Mini, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every case gets the same bytes, and none is refused because a lighter one was asked first."""
    monkeypatch.setattr(machine, "free_memory_bytes", lambda kind: 64 << 20)
    plans = [
        make_plan(
            mini(
                ('kv_memory = "1MiB"', 'kv_memory = "auto"'),
                ('"engine.block_size" = [4, 16]', f'"engine.weight_dtype" = {order}'),
            )
        )
        for order in ('["fp32", "bf16"]', '["bf16", "fp32"]')
    ]
    sizes = {case.job.engine["kv_memory"] for plan in plans for case in plan.cases}
    assert sizes == {plans[0].auto_kv_bytes}
    assert not any(case.refusal for plan in plans for case in plan.cases)


def test_a_host_tier_counts_only_where_it_is_used(mini: Mini) -> None:
    tier = '"engine.prefix_cache" = ["hash"]\n"engine.offload" = ["none", "host"]\n"engine.host_memory" = ["3MiB"]'
    plan = make_plan(mini(('"engine.block_size" = [4, 16]', tier)))
    assert [case.memory.host_tier for case in plan.cases] == [0, 3 << 20]


def test_the_manifest_says_which_model_by_its_geometry(mini: Mini) -> None:
    found = make_plan(mini()).to_dict()["models"]["tiny-llama"]
    assert found["attention_mode"] == "gqa"
    assert (found["geometry"]["num_layers"], found["geometry"]["groups"][0]["kv_heads"]) == (4, 2)


def test_each_repetition_is_a_process_of_its_own(mini: Mini, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from kvbench.sweep import run as run_module

    calls = []
    real = run_module.run_worker

    def counted(*arguments: object, **options: object) -> int:
        started = real(*arguments, **options)  # type: ignore[arg-type]
        calls.append(started)
        return started

    monkeypatch.setattr(run_module, "run_worker", counted)
    run_suite(mini(), out=tmp_path, repetitions=3)
    assert calls == [1, 1, 1]


def test_a_suite_in_which_nothing_fits_is_refused_with_the_arithmetic(mini: Mini, tmp_path: Path) -> None:
    with pytest.raises(CannotRunError, match=r"none of the 2 cases can run here.*blocks of 4 tokens hold"):
        run_suite(mini(('kv_memory = "1MiB"', 'kv_memory = "16KiB"')), out=tmp_path)
    assert not list(tmp_path.glob("mini-*"))


def test_a_case_that_does_not_fit_is_a_row_with_its_reason_and_the_others_run(mini: Mini, tmp_path: Path) -> None:
    suite = mini(
        ('kv_memory = "1MiB"\n', ""), ('"engine.block_size" = [4, 16]', '"engine.kv_memory" = ["1MiB", "100TiB"]')
    )
    run = run_suite(suite, out=tmp_path)
    assert list(run.cases["status"]) == ["ok", "skipped"]
    assert "100 TiB" in run.cases["error"].iloc[1]


def test_requests_that_are_too_long_are_told_before_the_start_and_counted(mini: Mini, tmp_path: Path) -> None:
    lengths = 'input_tokens = { kind = "empirical", values = [10, 400] }'
    suite = mini(('input_tokens = { kind = "uniform", low = 8, high = 24 }', lengths))
    plan = make_plan(suite)
    rejected = sum(r.input_tokens == 400 for r in plan.cases[0].workload.requests)
    assert 0 < rejected < 4
    assert plan.cases[0].notes[0].startswith(f"{rejected} of 4 requests will be rejected")
    run = run_suite(suite, out=tmp_path)
    assert set(run.cases["requests_rejected"]) == {rejected}
    assert set(run.cases["status"]) == {"ok"}


def test_a_suite_for_a_trace_says_so_when_there_is_none(mini: Mini) -> None:
    text = 'source = "trace"\n'
    suite = mini(('requests = 4\ninput_tokens = { kind = "uniform", low = 8, high = 24 }\noutput_tokens = 4\n', text))
    with pytest.raises(UsageError, match="needs a trace") as caught:
        make_plan(suite)
    assert "--trace" in (caught.value.hint or "")


def test_a_damaged_checkpoint_is_refused_before_anything_is_written(mini: Mini, tmp_path: Path) -> None:
    """Not a run in which every sample failed: one error, exit 2."""
    folder = write_checkpoint("llama", tmp_path / "model")
    suite = mini(('name = "tiny-llama"', f'name = "{folder}"\nweights = "checkpoint"'))
    assert len(make_plan(suite).runnable) == 2
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UsageError, match="not a whole safetensors file"):
        run_suite(suite, out=tmp_path / "results")
    assert not (tmp_path / "results").exists()


def test_a_checkpoint_is_its_folder_even_when_a_preset_has_its_name(
    mini: Mini, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_checkpoint("llama", tmp_path / "tiny-llama")
    monkeypatch.chdir(tmp_path)
    as_random = make_plan(mini()).models["tiny-llama"]["geometry"]
    loaded = make_plan(mini(('name = "tiny-llama"', 'name = "tiny-llama"\nweights = "checkpoint"')))
    assert as_random["num_layers"] == 4
    assert loaded.models["tiny-llama"]["geometry"]["num_layers"] == 3


def test_more_requests_than_memory_can_list_are_refused_at_once(mini: Mini, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolve, "free_memory_bytes", lambda _: 1 << 30)
    with pytest.raises(CannotRunError, match=r"90,000,000 requests take 42\.9 GiB") as caught:
        make_plan(mini(("requests = 4", "requests = 90_000_000")))
    assert "workload.requests" in (caught.value.hint or "")
