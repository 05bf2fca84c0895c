"""Requests of several sequences that could never be served are refused when the sweep is planned."""

from __future__ import annotations

import pytest

from kvbench.errors import CannotRunError
from kvbench.spec.load import from_effective
from kvbench.sweep.plan import SweepPlan
from kvbench.sweep.planner import make_plan


def planned(output_tokens: object = 8, requests: int = 4, **engine: object) -> SweepPlan:
    """Prompts of 40 tokens on a tiny-llama of 16 blocks of 16 tokens, 16 KiB each, under the virtual clock."""
    workload = {
        "requests": requests,
        "input_tokens": 40,
        "output_tokens": output_tokens,
        "outputs": "sampled",
        "sampling": {"beams": 8},
    }
    return make_plan(
        from_effective(
            {
                "name": "wide",
                "model": {"name": "tiny-llama"},
                "engine": {"kv_memory": 16 * 16 * 2048, **engine},
                "workload": workload,
                "measure": {"clock": "virtual", "virtual_device": "cpu"},
            }
        )
    )


def test_beams_that_outgrow_the_pool_are_refused_with_the_arithmetic() -> None:
    """8 beams of 40 + 8 tokens: 3 blocks, and one copied tail for each of the 7 others. Of 40 + 40: 5, and 3 each."""
    assert planned(8).cases[0].refusal is None
    with pytest.raises(CannotRunError, match="8 beams of a request may hold 26 blocks, the pool has 16"):
        planned(40)


def test_some_requests_that_are_too_wide_are_a_note() -> None:
    """The fourth block of 49 tokens and more costs 8 blocks: too many."""
    plan = planned({"kind": "uniform", "low": 8, "high": 11}, requests=16)
    rejected = sum(r.output_tokens > 9 for r in plan.cases[0].workload.requests)  # type: ignore[union-attr]
    assert 0 < rejected < 16
    assert plan.cases[0].refusal is None
    assert plan.cases[0].notes[0].startswith(f"{rejected} of 16 requests will be rejected: the 8 beams")


def test_beams_need_seats_and_shared_blocks() -> None:
    for engine, reason in (({"max_sequences": 7}, "max_sequences is 7"), ({"allocator": "buddy"}, "share blocks")):
        with pytest.raises(CannotRunError, match=reason):
            planned(8, **{"max_context": 48, **engine})
