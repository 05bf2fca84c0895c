from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbench.errors import UsageError
from kvbench.workload.tokens import foreign_stream, stream_index
from kvbench.workload.warmup import warmup_requests
from tests.workload.helpers import output_ids, prompt_ids, synthetic


def test_every_prompt_is_as_long_as_it_says() -> None:
    workload = synthetic(requests=23, sessions={"turns": 4}, prefix={"groups": 3, "tokens": 50}, max_input_tokens=300)
    for request in workload.requests:
        assert sum(segment.length for segment in request.prompt) == request.input_tokens
        assert sum(segment.length for segment in request.output or ()) == request.output_tokens


def test_a_turn_repeats_the_conversation_to_the_token() -> None:
    workload = synthetic(
        requests=9,
        sessions={"turns": 3, "think_time_s": 1.5},
        prefix={"groups": 1, "tokens": 20},
        input_tokens={"kind": "uniform", "low": 5, "high": 30},
        output_tokens={"kind": "uniform", "low": 1, "high": 9},
    )
    by_id = {request.request_id: request for request in workload.requests}
    for request in workload.requests:
        if request.after is None:
            assert request.request_id % 3 == 0
            continue
        before = by_id[request.after]
        said = prompt_ids(workload, before) + output_ids(workload, before)
        assert prompt_ids(workload, request)[: len(said)] == said
        assert 5 <= request.input_tokens - len(said) <= 30
        assert request.think_time_s == 1.5
        assert request.session_id == before.session_id
        assert request.request_id > before.request_id


def test_requests_counts_turns_and_the_last_session_may_be_short() -> None:
    workload = synthetic(requests=7, sessions={"turns": 3})
    assert [request.session_id for request in workload.requests] == [0, 0, 0, 1, 1, 1, 2]
    assert [request.after for request in workload.requests] == [None, 0, 1, None, 3, 4, None]


def test_poisson_times_are_of_sessions_and_turns_wait_for_their_answer() -> None:
    workload = synthetic(requests=12, sessions={"turns": 4}, arrival={"kind": "poisson", "rate": 2})
    starts = [request.arrival_s for request in workload.requests if request.after is None]
    assert len(starts) == 3
    assert starts == sorted(set(starts))
    assert all(request.arrival_s == starts[request.session_id or 0] for request in workload.requests)


def test_groups_share_their_prefix_and_nothing_else() -> None:
    workload = synthetic(requests=40, prefix={"groups": 3, "tokens": 64, "zipf": 0}, input_tokens=64)
    fronts = {tuple(prompt_ids(workload, request)[:64]) for request in workload.requests}
    backs = {tuple(prompt_ids(workload, request)[64:]) for request in workload.requests}
    assert len(fronts) == 3
    assert len(backs) == 40


def test_sampled_outputs_have_no_segments() -> None:
    workload = synthetic(requests=3, outputs="sampled")
    assert all(request.output is None and request.output_tokens == 32 for request in workload.requests)


def test_sessions_with_sampled_outputs_are_refused_with_a_way_out() -> None:
    with pytest.raises(UsageError) as caught:
        synthetic(requests=4, sessions={"turns": 2}, outputs="sampled")
    assert "forced" in (caught.value.hint or "")


def test_clipping_is_counted_and_reported() -> None:
    workload = synthetic(
        requests=100,
        input_tokens={"kind": "uniform", "low": 1, "high": 100},
        output_tokens={"kind": "uniform", "low": 1, "high": 100, "max": 90},
        max_input_tokens=60,
        max_output_tokens=10,
    )
    free = synthetic(
        requests=100,
        input_tokens={"kind": "uniform", "low": 1, "high": 100},
        output_tokens={"kind": "uniform", "low": 1, "high": 100},
    )
    report = workload.report
    assert report.clipped_inputs == sum(request.input_tokens > 60 for request in free.requests)
    assert report.clipped_outputs == sum(request.output_tokens > 10 for request in free.requests)
    assert report.clipped_draws == {
        "output_tokens lowered to max": sum(request.output_tokens > 90 for request in free.requests)
    }
    assert any("prompts were clipped to 60" in note for note in report.notes)


def test_requests_beyond_the_context_stay_and_are_counted() -> None:
    from kvbench.spec.workload import WorkloadSettings
    from kvbench.workload.build import build_workload

    settings = WorkloadSettings.model_validate({"requests": 5, "input_tokens": 100, "output_tokens": 28})
    exact, short = build_workload(settings, max_context=128), build_workload(settings, max_context=127)
    assert (exact.report.over_context, short.report.over_context) == (0, 5)
    assert exact.requests == short.requests
    assert exact.digest == short.digest


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 1},
        {"requests": 31},
        {"outputs": "sampled"},
        {"arrival": {"kind": "poisson", "rate": 1}},
        {"prefix": {"groups": 2}},
        {"max_output_tokens": 31},
        {"sessions": {"turns": 2}},
        {"sessions": {"turns": 2, "think_time_s": 1}},
    ],
)
def test_the_digest_changes_with_every_setting_that_changes_requests(change: dict[str, Any]) -> None:
    assert synthetic().digest == synthetic().digest
    assert synthetic(**change).digest != synthetic().digest


@settings(max_examples=60, deadline=None)
@given(
    requests=st.integers(1, 30),
    turns=st.integers(1, 6),
    groups=st.integers(0, 4),
    cap=st.none() | st.integers(1, 400),
    seed=st.integers(0, 2**63 - 1),
)
def test_any_synthetic_workload_is_well_formed(
    requests: int, turns: int, groups: int, cap: int | None, seed: int
) -> None:
    workload = synthetic(
        requests=requests,
        sessions={"turns": turns},
        prefix={"groups": groups, "tokens": 33},
        max_input_tokens=cap,
        seed=seed,
        arrival={"kind": "poisson", "rate": 5},
    )
    assert [request.request_id for request in workload.requests] == list(range(requests))
    assert [r.arrival_s for r in workload.requests] == sorted(r.arrival_s for r in workload.requests)
    for request in workload.requests:
        assert request.input_tokens == sum(segment.length for segment in request.prompt) >= 1
        assert cap is None or request.input_tokens <= cap
        assert request.after is None or request.after < request.request_id
        assert not any(is_of_warmup(segment.stream) for segment in request.prompt)


@pytest.mark.parametrize("sharing", [{}, {"prefix": {"groups": 3, "tokens": 40}, "sessions": {"turns": 3}}])
def test_m21_warm_up_uses_tokens_prefixes_and_sessions_that_the_workload_does_not(sharing: dict[str, Any]) -> None:
    """Warm-up uses token ids, prefixes and sessions that the workload does not."""
    lengths = {"kind": "lognormal", "median": 80, "sigma": 1}
    workload = synthetic(requests=60, input_tokens=lengths, **sharing)
    warmup = warmup_requests(workload, 8) + warmup_requests(workload, 8, turn=1)
    ours = {segment.stream for request in workload.requests for segment in (*request.prompt, *(request.output or ()))}
    theirs = {segment.stream for request in warmup for segment in (*request.prompt, *(request.output or ()))}
    assert not ours & theirs
    assert all(is_of_warmup(stream) for stream in theirs)
    fronts = {tuple(prompt_ids(workload, request)[:16]) for request in workload.requests}
    assert not fronts & {tuple(prompt_ids(workload, request)[:16]) for request in warmup}
    assert not {request.request_id for request in warmup} & {request.request_id for request in workload.requests}
    assert all(request.session_id is None and request.after is None for request in warmup)
    first, second = warmup_requests(workload, 8), warmup_requests(workload, 8, turn=1)
    assert not {s.stream for r in first for s in r.prompt} & {s.stream for r in second for s in r.prompt}


def test_warm_up_spans_the_lengths_of_the_workload() -> None:
    workload = synthetic(requests=60, input_tokens={"kind": "uniform", "low": 1, "high": 999}, outputs="sampled")
    lengths = sorted(request.input_tokens for request in workload.requests)
    warmup = warmup_requests(workload, 5, max_output_tokens=4)
    assert [r.input_tokens for r in warmup] == [lengths[at] for at in (0, 15, 30, 44, 59)]
    assert all(r.output_tokens == 4 and r.output is None for r in warmup)
    assert all(sum(s.length for s in r.prompt) == r.input_tokens for r in warmup)
    assert warmup_requests(workload, 0) == []
    assert len(warmup_requests(workload, 1)) == 1


def test_priority_classes_have_their_shares_and_leave_everything_else_alone() -> None:
    plain = synthetic(requests=2000, seed=3)
    drawn = synthetic(requests=2000, seed=3, priorities=[3, 0, 1])
    shares = Counter(request.priority for request in drawn.requests)
    assert set(shares) == {0, 2}
    assert 0.22 < shares[2] / 2000 < 0.28
    assert [replace(request, priority=0) for request in drawn.requests] == list(plain.requests)
    assert drawn.digest != plain.digest
    assert synthetic(requests=2000, seed=3, priorities=[5]).digest == plain.digest


def test_turns_of_a_session_share_their_priority() -> None:
    work = synthetic(requests=400, sessions={"turns": 4}, priorities=[1, 1])
    found = {(request.session_id, request.priority) for request in work.requests}
    assert len(found) == 100
    assert {priority for _, priority in found} == {0, 1}


def is_of_warmup(stream: int) -> bool:
    """Whether it is of the kind that warm-up has to itself."""
    return stream - stream_index(stream) == foreign_stream(0)
