"""Cold, primed and steady: what is in the cache when the window begins, what may be hit, and what is then invalid."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kvbench.engine.engine import Engine
from kvbench.engine.model import Model
from kvbench.geometry.presets import preset
from kvbench.measure import cache_state
from kvbench.measure.engine_case import measure_engine_case
from kvbench.measure.job import CaseJob
from kvbench.measure.measured import Measured
from kvbench.spec.engine import EngineSettings
from kvbench.spec.suite import CacheState, MeasureSettings, SloSettings
from kvbench.spec.workload import WorkloadSettings
from kvbench.workload.beforehand import requests_before, shared_fronts
from kvbench.workload.build import Workload, build_workload
from kvbench.workload.request import Request, Segment
from kvbench.workload.sharing import explainable_hit_tokens

ENGINE = EngineSettings(block_size=4, kv_memory=2 << 20, max_context=256, prefix_cache="hash", attention="torch")
SHARED = {"prefix": {"groups": 2, "tokens": 16}, "requests": 8}


@pytest.fixture(scope="module")
def model() -> Model:
    return Model.random(preset("tiny-llama"), seed=0)


def _job(state: CacheState, engine: EngineSettings = ENGINE, share: float = 1.0, **workload: Any) -> CaseJob:
    settings = WorkloadSettings.model_validate({"requests": 6, "input_tokens": 24, "output_tokens": 4, **workload})
    built = build_workload(settings, max_context=256)
    before = requests_before(built, state, share)
    return CaseJob(
        "case", 0, "engine", "f", {}, {},
        engine=engine.model_dump(mode="json"),
        workload=settings.model_dump(mode="json"),
        max_context=256,
        workload_digest=built.digest,
        explainable_hit_tokens=explainable_hit_tokens(built, engine.block_size, before=before),
        cache_state=state,
    )  # fmt: skip


def _measure(model: Model, job: CaseJob, share: float = 1.0) -> Measured:
    settings = MeasureSettings(warmup_requests=2, steady_share=share)
    return measure_engine_case(job, model, settings, SloSettings(), lambda _: None)


def _names(found: Measured) -> set[str]:
    return {warning["name"] for warning in found.warnings}


def test_a_primed_cache_holds_the_shared_prefixes_and_nothing_else_of_the_workload(model: Model) -> None:
    """Every request hits its own group's prefix, the first one of a group as well; cold, the first ones do not."""
    one_at_a_time = ENGINE.model_copy(update={"max_sequences": 1})
    cold, primed = (_measure(model, _job(state, one_at_a_time, **SHARED)) for state in ("cold", "primed"))  # type: ignore[arg-type]
    assert (cold.status, primed.status) == ("ok", "ok")
    assert primed.row["prefix_cache_hits"] == 8 * 16
    assert cold.row["prefix_cache_hits"] == 6 * 16
    assert primed.row["prepared_tokens"] == 2 * 16
    assert primed.row["cached_tokens_at_start"] == 2 * 16
    assert "prepared_tokens" not in cold.row


def test_a_steady_cache_has_seen_the_whole_workload_or_its_leading_share(model: Model) -> None:
    """All but the last block of each prompt of 24 tokens is found again (its last token must be computed)."""
    whole = _measure(model, _job("steady"))
    assert (whole.status, whole.row["prefix_cache_hits"], whole.row["prepared_tokens"]) == ("ok", 6 * 20, 6 * 24)
    half = _measure(model, _job("steady", share=0.5), share=0.5)
    assert (half.status, half.row["prefix_cache_hits"], half.row["prepared_tokens"]) == ("ok", 3 * 20, 3 * 24)


@pytest.mark.parametrize("state", ["cold", "primed", "steady"])
def test_m20_more_hits_than_workload_and_state_explain_make_the_sample_invalid(
    model: Model, monkeypatch: pytest.MonkeyPatch, state: CacheState
) -> None:
    """The workload itself was served before, whatever was declared; only `steady` explains that."""
    real = cache_state.requests_before
    monkeypatch.setattr(cache_state, "requests_before", lambda w, *_: real(w, "steady"))
    found = _measure(model, _job(state, **SHARED))
    assert found.status == ("ok" if state == "steady" else "invalid")
    if state != "steady":
        assert f"from a {'cold' if state == 'cold' else 'declared primed'} start" in (found.error or "")


@pytest.mark.parametrize("state", ["primed", "steady"])
def test_m22_what_was_served_before_the_window_is_in_no_counter_of_it(model: Model, state: CacheState) -> None:
    """Look-ups, admissions, steps and times are of the window's own requests, once each."""
    job = _job(state, **SHARED)
    found = _measure(model, job)
    steps, requests = found.steps or [], found.requests or []
    assert found.row["prefix_cache_queries"] == sum(r.input_tokens for r in requests)
    assert found.row["prefix_cache_hits"] == sum(r.cached_tokens for r in requests)
    assert sum(s.admissions for s in steps) == len(requests) == 8
    assert [s.step for s in steps] == list(range(len(steps)))
    assert 0 <= steps[0].t_s < 1


@pytest.mark.parametrize("state", ["primed", "steady"])
def test_m20_two_samples_in_one_process_have_the_same_hits(model: Model, state: CacheState) -> None:
    job = _job(state, ENGINE.model_copy(update={"max_sequences": 1}), **SHARED)
    first, second = (_measure(model, job).row["prefix_cache_hits"] for _ in range(2))
    assert first == second > 0


def test_a_state_that_is_no_other_than_cold_is_said(model: Model) -> None:
    assert "nothing_to_prime" in _names(_measure(model, _job("primed")))
    tiny = ENGINE.model_copy(update={"kv_memory": 40 * 2048, "max_sequences": 1, "prefix_cache": "none"})
    assert not {"nothing_to_prime", "state_not_held"} & _names(_measure(model, _job("primed", tiny, **SHARED)))


def test_reblocking_begins_with_the_declared_block_size_whatever_was_served_before(model: Model) -> None:
    """The size changes again in the window, after as many requests of the window as the settings say."""
    settings = ENGINE.model_copy(update={"reblock_to": 8, "reblock_after": 2, "max_sequences": 2})
    found = _measure(model, _job("steady", settings))
    assert found.status == "ok", found.error
    assert found.row["reblock_step"] > 0


def _request(number: int, *prompt: Segment, **changes: Any) -> Request:
    return Request(number, sum(s.length for s in prompt), 2, prompt, **changes)


def _fronts(*requests: Request) -> list[tuple[str | None, int]]:
    return [(r.salt, r.input_tokens) for r in shared_fronts(requests)]


def test_shared_fronts_are_the_longest_ones_and_none_begins_another() -> None:
    def own(number: int) -> Segment:
        return Segment(100 + number, 0, 10)

    system, longer = Segment(1, 0, 30), Segment(1, 0, 50)
    assert _fronts(_request(0, system, own(0)), _request(1, longer, own(1)), _request(2, longer, own(2))) == [
        (None, 50)
    ]
    assert _fronts(_request(0, own(0)), _request(1, own(1))) == []
    assert _fronts(_request(0, system, salt="a"), _request(1, system, salt="b")) == []
    assert _fronts(_request(0, system, salt="a"), _request(1, system, salt="a")) == [("a", 30)]


def test_turns_of_one_conversation_share_nothing_with_others() -> None:
    first = _request(0, Segment(5, 0, 20))
    later = _request(1, Segment(5, 0, 20), Segment(6, 0, 5), after=0)
    assert shared_fronts((first, later)) == []


def test_shared_fronts_agree_with_a_comparison_of_every_pair() -> None:
    workload = build_workload(
        WorkloadSettings.model_validate(
            {"requests": 40, "input_tokens": 30, "prefix": {"groups": 5, "tokens": 8, "shots": 3, "shot_tokens": 6}}
        )
    )
    tokens = [_spelled(request) for request in workload.requests]
    longest = {
        mine[: max(_common(mine, other) for other in (*tokens[:at], *tokens[at + 1 :]))]
        for at, mine in enumerate(tokens)
    } - {()}
    wanted = {front for front in longest if not any(other != front and _begins(other, front) for other in longest)}
    assert {_spelled(request) for request in shared_fronts(workload.requests)} == wanted


def _spelled(request: Request) -> tuple[tuple[int, int], ...]:
    return tuple((s.stream, s.start + n) for s in request.prompt for n in range(s.length))


def _common(one: tuple[Any, ...], other: tuple[Any, ...]) -> int:
    return next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def _begins(whole: tuple[Any, ...], front: tuple[Any, ...]) -> bool:
    return whole[: len(front)] == front


def test_the_engine_refuses_to_count_anew_while_it_serves(model: Model) -> None:
    from kvbench.errors import UsageError

    engine = Engine(model, ENGINE)
    workload: Workload = build_workload(WorkloadSettings.model_validate({"requests": 1, "input_tokens": 8}))
    from kvbench.engine.job import Job
    from kvbench.workload.tokens import token_ids

    engine.add(Job(request_id=0, prompt=token_ids(workload.requests[0].prompt, 0, engine.vocab_size), max_tokens=2))
    with pytest.raises(UsageError, match="still serving"):
        engine.recount()
    engine.close()


def test_primed_tokens_cannot_be_hit_beyond_their_blocks() -> None:
    """The bound counts whole blocks of what was served before: 16 shared tokens are 2 blocks of 8, 1 of 12."""
    settings = WorkloadSettings.model_validate(
        {"requests": 4, "input_tokens": 24, "prefix": {"groups": 1, "tokens": 16}}
    )
    workload = build_workload(settings)
    before = requests_before(workload, "primed")
    assert explainable_hit_tokens(workload, 8, before=before) == 4 * 16
    assert explainable_hit_tokens(workload, 12, before=before) == 4 * 12
    assert explainable_hit_tokens(workload, 8) == 3 * 16
    assert explainable_hit_tokens(replace(workload, requests=()), 8, before=workload.requests) == 0
