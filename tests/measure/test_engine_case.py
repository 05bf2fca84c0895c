"""One engine case in this process: cold means cold, warm-up leaves no trace, an empty result is never ok."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvbench.engine.engine import Engine
from kvbench.engine.model import Model
from kvbench.errors import CannotRunError, InternalError
from kvbench.geometry.presets import preset
from kvbench.measure import engine_case
from kvbench.measure.core_speed import CoreSpeed
from kvbench.measure.engine_case import Measured, measure_engine_case
from kvbench.measure.job import CaseJob
from kvbench.measure.redo import Observer, RedoBudget
from kvbench.spec.engine import EngineSettings
from kvbench.spec.suite import MeasureSettings, SloSettings
from kvbench.spec.workload import WorkloadSettings
from kvbench.store.parts import read_parts
from kvbench.workload.build import Workload, build_workload
from kvbench.workload.sharing import explainable_hit_tokens

ENGINE = EngineSettings(block_size=4, kv_memory=1 << 20, max_context=256, prefix_cache="hash", attention="torch")


@pytest.fixture(scope="module")
def model() -> Model:
    return Model.random(preset("tiny-llama"), seed=0)


def _job(engine: EngineSettings = ENGINE, **workload: Any) -> tuple[CaseJob, Workload]:
    settings = WorkloadSettings.model_validate({"requests": 6, "input_tokens": 24, "output_tokens": 4, **workload})
    built = build_workload(settings, max_context=256)
    job = CaseJob(
        "case", 0, "engine", "f", {}, {},
        engine=engine.model_dump(mode="json"),
        workload=settings.model_dump(mode="json"),
        max_context=256,
        workload_digest=built.digest,
        explainable_hit_tokens=explainable_hit_tokens(built, engine.block_size),
    )  # fmt: skip
    return job, built


def _measure(model: Model, job: CaseJob, warmup: int = 2, **measure: Any) -> Measured:
    settings = MeasureSettings(warmup_requests=warmup, **measure)
    return measure_engine_case(job, model, settings, SloSettings(), lambda share: None)


def test_m20_the_same_random_workload_twice_in_one_process_has_no_hits_twice(model: Model) -> None:
    """Prefix caching on, `cold` declared: the second sample must not show the first one's contents."""
    job, _ = _job()
    for _ in range(2):
        found = _measure(model, job)
        assert (found.status, found.row["prefix_cache_hits"]) == ("ok", 0)


def test_a_sample_on_a_shared_core_is_taken_again_and_its_share_is_a_column(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The core is slow for as long as the first attempt lasts: the second one counts."""
    monkeypatch.setattr(engine_case, "STEPS_EVERY_S", 0.0)
    now, slowness, said = [0.0], [1.0], list[str]()

    def work() -> None:
        now[0] += slowness[0]

    def told(reason: str) -> None:
        said.append(reason)
        slowness[0] = 1.0

    core = CoreSpeed(lambda: now[0], work)
    for _ in range(20):
        core.probe()
    slowness[0] = 1.5
    observer = Observer(budget=RedoBudget(1), say=told, core=core)
    job, _ = _job()
    found = measure_engine_case(job, model, MeasureSettings(), SloSettings(), lambda share: None, observer)
    assert [text for text in said if "another tenant used the core 100% of the time" in text] == said != []
    assert (found.status, found.row["core_shared_share"], found.row["attempts"]) == ("ok", 0.0, 2)


def test_m20_hits_that_the_workload_cannot_explain_make_the_sample_invalid(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Warm-up on the workload's own tokens, and no reset: contaminated, and told so with both figures."""
    job, _ = _job()
    monkeypatch.setattr(engine_case, "warmup_requests", lambda w, count, **_: list(w.requests))
    monkeypatch.setattr(Engine, "reset", lambda self: None)
    found = _measure(model, job)
    assert found.status == "invalid"
    assert "the workload explains 0" in (found.error or "")


def test_m20_hits_that_the_workload_does_explain_are_fine(model: Model) -> None:
    job, _ = _job(ENGINE.model_copy(update={"max_sequences": 2}), prefix={"groups": 1, "tokens": 16})
    found = _measure(model, job)
    assert found.status == "ok"
    assert 0 < found.row["prefix_cache_hits"] <= job.explainable_hit_tokens


def test_m21_warm_up_serves_tokens_that_the_workload_does_not_have(model: Model) -> None:
    """No stream of a warm-up request occurs in the workload, even where prefixes are shared."""
    _, workload = _job(prefix={"groups": 2, "tokens": 16})
    foreign = engine_case.warmup_requests(workload, 4)
    own = {s.stream for r in workload.requests for s in (*r.prompt, *(r.output or ()))}
    assert foreign
    assert not own & {s.stream for r in foreign for s in (*r.prompt, *(r.output or ()))}


@pytest.mark.parametrize("warmup", [0, 1, 5])
def test_m23_warm_up_is_in_no_counter_and_no_table(model: Model, warmup: int) -> None:
    """Whatever ran before the measured window, tables and counters hold the workload's requests and nothing else."""
    job, workload = _job()
    found = _measure(model, job, warmup)
    assert {r.request_id for r in found.requests or ()} == {r.request_id for r in workload.requests}
    assert sum(s.prefill_tokens for s in found.steps or ()) == sum(r.input_tokens for r in workload.requests)
    assert found.row["prefix_cache_queries"] == sum(r.input_tokens for r in workload.requests)
    assert min(s.t_s for s in found.steps or ()) >= 0


def test_m22_hit_rate_counts_each_admitted_request_once(model: Model) -> None:
    """Even when sequences are preempted and admitted again, look-ups are the prompts' tokens, once each."""
    small = ENGINE.model_copy(update={"kv_memory": 40 * 2048 * 4, "max_sequences": 6})
    job, workload = _job(small, output_tokens=40)
    found = _measure(model, job)
    assert found.row["preemptions"] > 0
    assert found.row["prefix_cache_queries"] == sum(r.input_tokens for r in workload.requests)


def test_m10_a_case_without_a_token_is_not_ok(model: Model) -> None:
    """Every request is longer than the context: no metric, so never `ok`."""
    job, _ = _job()
    found = _measure(model, replace(job, max_context=8, workload_digest=None))
    assert found.status == "invalid"


def test_a_trace_that_changes_during_the_sweep_is_noticed(model: Model, tmp_path: Path) -> None:
    from kvbench.errors import DataError

    trace = tmp_path / "t.csv"
    trace.write_text("num_prefill_tokens,num_decode_tokens\n10,2\n12,2\n")
    job, _ = _job(source="trace", trace=str(trace))
    trace.write_text("num_prefill_tokens,num_decode_tokens\n10,2\n13,2\n")
    with pytest.raises(DataError, match="changed on disk"):
        _measure(model, job)


def _torch_gives_up() -> None:
    raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 2097152 bytes.")


def _store_gives_up() -> None:
    try:
        _torch_gives_up()
    except RuntimeError as error:
        raise CannotRunError("2.00 MiB of KV cannot be allocated") from error


def _python_gives_up() -> None:
    raise MemoryError


@pytest.mark.parametrize("give_up", [_torch_gives_up, _store_gives_up, _python_gives_up])
def test_m08_out_of_memory_is_typed_and_what_needs_more_is_not_tried(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, give_up: Callable[[], None]
) -> None:
    """The allocator gives up on one case: `oom`; the larger one is `oom_implied`; the smaller one still runs."""
    sizes = {"small": 1 << 20, "middle": 2 << 20, "large": 4 << 20}
    jobs = {
        name: replace(_job(ENGINE.model_copy(update={"kv_memory": size}))[0], case_id=name)
        for name, size in sizes.items()
    }
    bench = _bench(tmp_path)
    monkeypatch.setattr(bench, "_model", lambda *_: model)
    real = engine_case.measure_engine_case

    def tight(case: CaseJob, *rest: Any) -> Measured:
        if case.engine is not None and case.engine["kv_memory"] > 1 << 20:
            give_up()
        return real(case, *rest)

    monkeypatch.setattr(engine_case, "measure_engine_case", tight)
    assert [bench.measure(jobs[name])[0] for name in ("middle", "large", "small")] == ["oom", "oom_implied", "ok"]
    parts, problems = read_parts(tmp_path)
    assert {part.row["case_id"]: part.row["status"] for part in parts} == {
        "middle": "oom", "large": "oom_implied", "small": "ok",
    }  # fmt: skip
    assert problems == []


def _bench(run_dir: Path) -> Any:
    from kvbench.measure.bench import Bench as RealBench
    from kvbench.measure.job import WorkerJob

    (run_dir / "plan.json").write_text(json.dumps({"run_id": "run", "suite": {"name": "s"}, "cases": []}))
    suite = {"measure": MeasureSettings().model_dump(mode="json"), "slo": SloSettings().model_dump(mode="json")}
    return RealBench(WorkerJob(str(run_dir), "cpu", 1, suite), lambda *_, **__: None)


def test_books_that_do_not_add_up_after_a_case_are_an_error_and_no_numbers(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: Engine) -> None:
        raise InternalError("block 3 has 2 owners and ref count 1")

    bench = _bench(tmp_path)
    monkeypatch.setattr(bench, "_model", lambda *_: model)
    monkeypatch.setattr(Engine, "check_invariants", broken)
    assert bench.measure(_job()[0]) == ("error", {"error": "block 3 has 2 owners and ref count 1"})


def test_numeric_error_belongs_to_the_model_even_where_two_stood_at_one_address(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker keeps one model at a time, so the next may lie where the last one lay."""
    asked: list[str] = []
    monkeypatch.setattr("kvbench.measure.kv_error.kv_error", lambda *_: asked.append("") or {})
    bench = _bench(tmp_path)
    monkeypatch.setattr(bench, "_model", lambda *_: model)
    for seed in (0, 0, 1):
        bench.measure(replace(_job()[0], model={"seed": seed}))
    assert len(asked) == 2


def test_a_sample_keeps_what_the_machine_read_before_and_after_it(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = _bench(tmp_path)
    monkeypatch.setattr(bench, "_model", lambda *_: model)
    bench.measure(_job()[0])
    (part,), _ = read_parts(tmp_path)
    found = json.loads(part.row["extra"])
    assert found.keys() - {"attempts"} == {"before", "after"}
    assert all(
        reading["host"].keys() >= {"load_average", "memory_available_bytes"}
        for reading in (found["before"], found["after"])
    )
