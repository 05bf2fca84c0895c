"""Two accounts of one sample must agree: what a real engine writes does, and every single change is noticed."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from kvbench.costmodel.profiles import virtual_device
from kvbench.costmodel.roofline import roofline
from kvbench.engine.serve import Served, serve
from kvbench.geometry.presets import preset
from kvbench.measure.consistency import contradictions
from kvbench.measure.measured import measured
from kvbench.measure.virtual_case import virtual_engine
from kvbench.spec.engine import EngineSettings
from kvbench.spec.suite import SloSettings
from kvbench.spec.workload import WorkloadSettings
from kvbench.workload.build import build_workload

ENGINES: dict[str, dict[str, Any]] = {
    "plain": {},
    "preempting": {"kv_memory": 60 * 4096},
    "swapping": {"kv_memory": 60 * 4096, "preemption": "swap", "swap_memory": 1 << 20},
    "offloading": {"kv_memory": 90 * 4096, "offload": "host", "host_memory": 1 << 22},
    "chunked": {"max_batch_tokens": 16},
    "one block": {"block_size": 64},
}


def _served(name: str = "preempting") -> tuple[Served, EngineSettings]:
    settings = EngineSettings.model_validate(
        {
            "block_size": 4, "kv_memory": 1 << 21, "max_context": 256, "prefix_cache": "hash",
            "weight_dtype": "fp32", "max_sequences": 8, **ENGINES[name],
        }
    )  # fmt: skip
    workload = build_workload(
        WorkloadSettings.model_validate(
            {
                "requests": 24, "input_tokens": 30, "output_tokens": 20, "prefix": {"groups": 2, "tokens": 16},
                "arrival": {"kind": "poisson", "rate": 5000.0}, "sessions": {"turns": 2},
            }
        )
    )  # fmt: skip
    engine = virtual_engine(preset("tiny-llama"), settings, roofline(virtual_device("cpu")).rates)
    return serve(engine, workload), settings


@pytest.mark.parametrize("name", ENGINES)
def test_what_an_engine_writes_is_consistent(name: str) -> None:
    served, _ = _served(name)
    assert contradictions(served.requests, served.steps, wall_s=served.wall_s) == []
    if name in ("preempting", "swapping"):
        assert sum(step.preemptions for step in served.steps) > 0


REQUEST_CHANGES = {
    "cached_tokens": 1, "preemptions": 1, "draft_tokens": 1, "accepted_tokens": 1, "recomputed_tokens": 1,
    "input_tokens": -1, "output_tokens": 1, "queue_time_s": 0.5, "prefill_time_s": 0.5, "ttft_s": 0.5, "e2e_s": 0.5,
}  # fmt: skip
STEP_CHANGES = {
    "prefix_cache_hits": 1, "prefix_cache_queries": 1000, "preemptions": 1, "draft_tokens": 1, "accepted_tokens": 1,
    "prefill_tokens": 1, "decode_tokens": -1, "admissions": -1000, "duration_s": 1.0, "kv_bytes_used": 1 << 40,
    "kv_blocks_free": 1 << 20, "external_blocks": 1 << 20,
}  # fmt: skip


@pytest.mark.parametrize("field", REQUEST_CHANGES)
def test_m37_a_request_that_says_something_else_than_the_steps_is_noticed(field: str) -> None:
    served, _ = _served()
    requests = copy.deepcopy(served.requests)
    setattr(requests[3], field, getattr(requests[3], field) + REQUEST_CHANGES[field])
    assert contradictions(requests, served.steps, wall_s=served.wall_s)


@pytest.mark.parametrize("field", STEP_CHANGES)
def test_m37_a_step_that_says_something_else_than_the_requests_is_noticed(field: str) -> None:
    served, _ = _served()
    steps = copy.deepcopy(served.steps)
    setattr(steps[2], field, getattr(steps[2], field) + STEP_CHANGES[field])
    assert contradictions(served.requests, steps, wall_s=served.wall_s)


def test_m37_a_sample_whose_columns_contradict_each_other_is_invalid_with_both_figures() -> None:
    served, settings = _served()
    hits = sum(step.prefix_cache_hits for step in served.steps)
    served.steps[0].prefix_cache_hits += 5
    found = measured(served, settings, SloSettings(), preset("tiny-llama"), 256)
    assert found.status == "invalid"
    assert f"{hits + 5:,} and {hits:,}" in (found.error or "")
    assert found.warnings[0]["name"] == "contradiction"


def test_a_window_shorter_than_its_steps_is_noticed() -> None:
    served, _ = _served()
    assert contradictions(served.requests, served.steps, wall_s=served.wall_s / 2)


def test_at_most_three_statements_are_said() -> None:
    served, _ = _served()
    for request in served.requests:
        request.ttft_s = 99.0
    assert len(contradictions(served.requests, served.steps, wall_s=served.wall_s)) == 3
