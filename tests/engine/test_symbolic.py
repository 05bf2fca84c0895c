"""Contents by name against contents by token: the same hits, evictions, times and records; serving from a stream."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from kvbench.cache.content import KeyChain
from kvbench.cache.symbolic import SymbolicContent
from kvbench.costmodel.model import CostModel
from kvbench.costmodel.profiles import virtual_device
from kvbench.costmodel.roofline import roofline
from kvbench.engine.job import Job
from kvbench.engine.serve import serve
from kvbench.engine.stream import serve_stream
from kvbench.engine.symbolic import symbolic_job
from kvbench.engine.telemetry import RequestRecord, StepRecord
from kvbench.engine.virtual import VirtualEngine
from kvbench.errors import InternalError, UsageError
from kvbench.geometry.presets import preset
from kvbench.spec.engine import EngineSettings
from kvbench.workload.repeating import repeated_requests
from kvbench.workload.request import Request, Segment
from kvbench.workload.tokens import conversation_stream, recorded_stream, token_ids
from kvbench.workload.types import ImportReport, Workload
from tests.engine.test_decode_runs import settings_of

GEOMETRY = replace(preset("tiny-llama"), vocab_size=1 << 30)
"""So many tokens that none are equal by chance"""
RATES = roofline(virtual_device("h100")).rates


@dataclass
class Kept:
    """A sink that keeps everything."""

    all_steps: list[StepRecord] = field(default_factory=list)
    requests: list[RequestRecord] = field(default_factory=list)

    def steps(self, steps: Collection[StepRecord]) -> None:
        self.all_steps += steps

    def request(self, record: RequestRecord) -> None:
        self.requests.append(record)


def requests_of(seed: int) -> list[Request]:
    """Prompts of whole and partial pieces of few streams; outputs that continue a piece, or are their own."""
    rng = np.random.default_rng(seed)
    requests, now = [], 0.0
    for number in range(int(rng.integers(1, 30))):
        pieces = [
            Segment(recorded_stream(int(rng.integers(0, 3))), 0, int(rng.choice([8, 8, 5])))
            for _ in range(rng.integers(1, 8))
        ]
        outputs = int(rng.integers(1, 60))
        last = pieces[-1]
        follows = Segment(last.stream, last.length, outputs)
        own = Segment(conversation_stream(number), 0, outputs)
        now += float(rng.choice([0.0, 0.0, 0.002, 0.05]))
        requests.append(
            Request(
                request_id=number,
                input_tokens=sum(piece.length for piece in pieces),
                output_tokens=outputs,
                prompt=tuple(pieces),
                arrival_s=now,
                output=(follows if rng.random() < 0.5 else own,),
                salt="a" if rng.random() < 0.1 else None,
            )
        )
    return requests


def token_job(request: Request) -> Job:
    assert request.output is not None
    prompt, forced = (token_ids(part, 5, 1 << 30) for part in (request.prompt, request.output))
    return Job(
        request.request_id,
        prompt,
        request.output_tokens,
        forced,
        arrival_s=request.arrival_s,
        salt=request.salt,
        seed=5,
    )


def engine_of(settings: EngineSettings, *, symbolic: bool, in_runs: bool = True) -> VirtualEngine:
    cost = CostModel(GEOMETRY, RATES, weight_dtype="bf16", kv_dtype="bf16", block_size=settings.block_size)
    return VirtualEngine(
        GEOMETRY, settings, cost, weight_dtype="bf16", max_context=512, symbolic=symbolic, in_runs=in_runs, check=True
    )


@pytest.mark.parametrize("seed", range(60))
def test_names_hit_what_tokens_hit(seed: int) -> None:
    settings, requests = settings_of(seed).model_copy(update={"prefix_cache": "hash"}), requests_of(seed)
    tokens, names, stepwise = Kept(), Kept(), Kept()
    serve_stream(engine_of(settings, symbolic=False), map(token_job, requests), tokens)
    serve_stream(engine_of(settings, symbolic=True), (symbolic_job(r, 5) for r in requests), names)
    plain = engine_of(settings, symbolic=True, in_runs=False)
    serve_stream(plain, (symbolic_job(r, 5) for r in requests), stepwise)
    assert tokens == names == stepwise


def test_the_loads_above_have_hits() -> None:
    hits = 0
    for seed in range(20):
        sink = Kept()
        settings = settings_of(seed).model_copy(update={"prefix_cache": "hash"})
        serve_stream(engine_of(settings, symbolic=True), (symbolic_job(r, 5) for r in requests_of(seed)), sink)
        hits += sum(step.prefix_cache_hits for step in sink.all_steps)
    assert hits > 500


def test_a_stream_is_served_as_a_listed_workload_is() -> None:
    for seed in range(10):
        settings, requests = settings_of(seed), requests_of(seed)
        sink = Kept()
        served = serve(engine_of(settings, symbolic=False), Workload(tuple(requests), ImportReport("s", "s"), "d", 5))
        wall_s = serve_stream(engine_of(settings, symbolic=False), map(token_job, requests), sink)
        assert (served.steps, served.requests, served.wall_s) == (sink.all_steps, sink.requests, wall_s)


@pytest.mark.parametrize("seed", range(30))
def test_keys_are_equal_exactly_where_fronts_are(seed: int) -> None:
    """Against the fronts written out as (stream, position) pairs."""
    chain = KeyChain(int(np.random.default_rng(seed).integers(1, 9)))
    requests = requests_of(seed)
    seen: dict[tuple[Any, ...], bytes] = {}
    for request in requests:
        job = symbolic_job(request, 0)
        content = job.content()
        content.extend(range(request.output_tokens))
        written = [(s.stream, s.start + i) for s in (*request.prompt, *(request.output or ())) for i in range(s.length)]
        for block, key in enumerate(content.keys(chain, len(written) // chain.block_size)):
            front = (request.salt, *written[: (block + 1) * chain.block_size])
            assert seen.setdefault(front, key) == key
    assert len(set(seen.values())) == len(seen)


def test_a_name_cannot_be_outgrown() -> None:
    content = SymbolicContent([(1, 0, 10)], 8)
    content.append(0)
    content.extend([0])
    for grow in (lambda: content.append(0), lambda: content.truncate(11), lambda: content.truncate(-1)):
        with pytest.raises(InternalError):
            grow()
    with pytest.raises(InternalError):
        content.keys(KeyChain(4), 3)
    assert len(content.keys(KeyChain(4), 2)) == 2


def test_what_has_no_name_and_what_is_out_of_order_is_refused() -> None:
    request = requests_of(0)[0]
    with pytest.raises(UsageError, match="samples its output"):
        symbolic_job(replace(request, output=None), 0)
    late = [replace(request, arrival_s=1.0), replace(request, request_id=99, arrival_s=0.5)]
    with pytest.raises(UsageError, match="stands before it"):
        serve_stream(engine_of(settings_of(0), symbolic=True), (symbolic_job(r, 0) for r in late), Kept())
    with pytest.raises(UsageError, match="cannot be repeated"):
        next(repeated_requests([request, replace(request, request_id=1, after=0)], 5))


def test_repetitions_go_on_in_time_share_within_and_never_between() -> None:
    requests = requests_of(3)
    streams: list[set[int]] = []
    found: Iterator[Request] = repeated_requests(requests, 3 * len(requests) + 1)
    listed = list(found)
    assert listed[: len(requests)] == requests
    assert [r.request_id for r in listed] == list(range(len(listed)))
    assert all(a.arrival_s <= b.arrival_s for a, b in pairwise(listed))
    for repetition in range(3):
        part = listed[repetition * len(requests) : (repetition + 1) * len(requests)]
        assert [(r.input_tokens, r.output_tokens) for r in part] == [
            (r.input_tokens, r.output_tokens) for r in requests
        ]
        streams.append({s.stream for r in part for s in (*r.prompt, *(r.output or ()))})
        assert len(streams[-1]) == len(streams[0])
    assert not streams[0] & streams[1]
    assert not streams[1] & streams[2]
    assert not streams[0] & streams[2]
