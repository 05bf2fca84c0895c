"""Decode steps taken in runs against the plain loop: everything that can be seen is the same, to the last bit."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from kvbench.costmodel.model import CostModel
from kvbench.costmodel.profiles import virtual_device
from kvbench.costmodel.roofline import roofline
from kvbench.engine.sampling import SamplingParams
from kvbench.engine.serve import DeadlineError, Served, serve
from kvbench.engine.step_run import StepRun
from kvbench.engine.virtual import VirtualEngine
from kvbench.geometry.memory import block_bytes
from kvbench.geometry.presets import preset
from kvbench.spec.engine import EngineSettings
from kvbench.workload.request import Request, Segment
from kvbench.workload.types import ImportReport, Workload

GEOMETRY = replace(preset("tiny-llama"), vocab_size=50)
RATES = roofline(virtual_device("h100")).rates


def engine_of(settings: EngineSettings, *, in_runs: bool) -> VirtualEngine:
    cost = CostModel(GEOMETRY, RATES, weight_dtype="bf16", kv_dtype="bf16", block_size=settings.block_size)
    return VirtualEngine(GEOMETRY, settings, cost, weight_dtype="bf16", max_context=512, in_runs=in_runs, check=True)


def workload_of(seed: int, *, forced: bool = True) -> Workload:
    """Few streams, so that prompts and outputs repeat each other; bursts and gaps; some requests follow others."""
    rng = np.random.default_rng(seed)
    requests = []
    for number in range(int(rng.integers(1, 30))):
        stream = int(rng.integers(0, 4))
        inputs, outputs = int(rng.integers(1, 60)), int(rng.integers(1, 80))
        after = int(rng.integers(0, number)) if number and rng.random() < 0.2 else None
        requests.append(
            Request(
                request_id=number,
                input_tokens=inputs,
                output_tokens=outputs,
                prompt=(Segment(stream, 0, inputs),),
                arrival_s=float(rng.integers(0, 4)) * 0.013,
                output=(Segment(stream, inputs, outputs),) if forced and rng.random() < 0.9 else None,
                after=after,
                think_time_s=0.001 if after is not None else 0.0,
                salt="a" if rng.random() < 0.1 else None,
            )
        )
    return Workload(tuple(requests), ImportReport("synthetic", "synthetic"), "digest", seed)


def settings_of(seed: int) -> EngineSettings:
    rng = np.random.default_rng(1000 + seed)
    block_size = int(rng.choice([1, 2, 4, 16, 64]))
    given: dict[str, Any] = {
        "block_size": block_size,
        "kv_dtype": "bf16",
        "kv_memory": int(rng.integers(160, 900)) // block_size * block_bytes(GEOMETRY, "bf16", block_size),
        "max_sequences": int(rng.choice([1, 2, 5, 12, 40])),
        "max_batch_tokens": int(rng.choice([4, 32, 256])),
        "batch_policy": str(rng.choice(["static", "continuous", "chunked"])),
        "admission": str(rng.choice(["max-utilization", "guaranteed-no-evict"])),
        "prefix_cache": str(rng.choice(["none", "hash", "hash"])),
        "weight_dtype": "bf16",
    }
    return EngineSettings.model_validate(given)


@dataclass
class Counted:
    """A served workload and how many of its steps were taken in runs."""

    served: Served
    in_runs: int
    live: list[bytes]


def play(settings: EngineSettings, workload: Workload, *, in_runs: bool, monkeypatch: pytest.MonkeyPatch) -> Counted:
    engine, counted = engine_of(settings, in_runs=in_runs), [0]
    plain_iter = StepRun.__iter__

    def counting(run: StepRun) -> Any:
        counted[0] += len(run)
        return plain_iter(run)

    with monkeypatch.context() as patch:
        patch.setattr(StepRun, "__iter__", counting)
        served = serve(engine, workload, sampling=SamplingParams(temperature=0.5))
    engine.check_invariants()
    books: Any = engine.manager
    return Counted(served, counted[0], sorted(books.books.indexes[0].blocks))


@pytest.mark.parametrize("seed", range(60))
def test_runs_change_nothing_that_can_be_seen(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    settings, workload = settings_of(seed), workload_of(seed)
    plain = play(settings, workload, in_runs=False, monkeypatch=monkeypatch)
    bulk = play(settings, workload, in_runs=True, monkeypatch=monkeypatch)
    assert plain.in_runs == 0
    for one, two in zip(plain.served.steps, bulk.served.steps, strict=True):
        assert one == two
    assert plain.served == bulk.served
    assert plain.live == bulk.live


def test_most_steps_of_the_random_loads_are_taken_in_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or the comparison above would compare the plain loop with itself."""
    total = taken = 0
    for seed in range(20):
        counted = play(settings_of(seed), workload_of(seed), in_runs=True, monkeypatch=monkeypatch)
        total += len(counted.served.steps)
        taken += counted.in_runs
    assert taken > 0.5 * total


def test_records_hold_plain_numbers() -> None:
    settings = settings_of(0).model_copy(update={"prefix_cache": "hash", "kv_memory": 1 << 24})
    served = serve(engine_of(settings, in_runs=True), workload_of(3))
    for record in served.steps:
        for name in record.__slots__:
            assert type(getattr(record, name)) in (int, float), name


def test_a_deadline_is_met_in_the_middle_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    settings, workload = settings_of(1), workload_of(1)
    whole = play(settings, workload, in_runs=True, monkeypatch=monkeypatch).served
    for share in (0.1, 0.5, 0.9):
        ends = []
        for in_runs in (False, True):
            with pytest.raises(DeadlineError) as stopped:
                serve(engine_of(settings, in_runs=in_runs), workload, deadline_s=whole.wall_s * share)
            ends.append(stopped.value.served)
        assert ends[0] == ends[1]
