"""The calibration serves whatever the case's own limits allow."""

from __future__ import annotations

import time

import pytest

from kvbench.measure.calibrate import INPUT_TOKENS, OUTPUT_TOKENS, calibrate, shape_within
from kvbench.spec.engine import EngineSettings


@pytest.mark.parametrize("room", [3, 4, 5, 20, 128, 144, 145, 10_000])
def test_prompt_and_outputs_fit_the_longest_sequence(room: int) -> None:
    inputs, outputs = shape_within(room)
    assert 1 <= inputs <= INPUT_TOKENS
    assert 1 <= outputs <= OUTPUT_TOKENS
    assert inputs + 1 + outputs <= room


@pytest.mark.parametrize(("max_context", "blocks"), [(32, 64), (4096, 2)])
def test_a_short_context_or_a_small_pool_still_gives_rates(max_context: int, blocks: int) -> None:
    block_bytes = 4 * 2 * 2 * 32 * 4 * 16  # layers · K and V · KV heads · head_dim · fp32 · tokens of a block
    engine = EngineSettings(kv_memory=blocks * block_bytes, attention="torch", weight_dtype="fp32")
    asked = {
        "model": {"name": "tiny-llama"},
        "engine": engine.model_dump(mode="json"),
        "max_context": max_context,
        "device": "cpu",
        "threads": 1,
    }
    found = calibrate(asked, time.perf_counter())
    assert all(value > 0 for value in found.values())
