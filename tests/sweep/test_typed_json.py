"""Dataclasses back from JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest

from kvbench.analysis.gate.self_test import SelfTest
from kvbench.analysis.gate.types import Rule
from kvbench.sweep.gate_folder import Block
from kvbench.sweep.gate_run import GateSettings
from kvbench.sweep.typed_json import from_json

BLOCK = Block("screen", 3, True, False, {"case": ["throttled"]}, "blocks/a", "blocks/b")
TEST = SelfTest(3, 10, 0.01, 0.0, float("inf"), 0.0, 1.0, 0, 0, 0.05, 3, 3, ("a problem",), "f")


@pytest.mark.parametrize(
    "record", [BLOCK, TEST, GateSettings("a", "b", rule=replace(Rule(), margin=0.03), base_python="python3", seed=7)]
)
def test_what_was_written_is_read_back(record: Block | SelfTest | GateSettings) -> None:
    assert from_json(type(record), json.loads(json.dumps(asdict(record)))) == record


@pytest.mark.parametrize(
    "changes",
    [
        {"stage": "warm"},
        {"number": True},
        {"number": 1.5},
        {"is_kept": 1},
        {"disturbances": []},
        {"disturbances": {"case": [1]}},
        {"baseline": None},
        {"other": 1},
    ],
)
def test_a_value_of_another_type_is_refused_by_its_field(changes: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(changes))):
        from_json(Block, {**asdict(BLOCK), **changes})


@pytest.mark.parametrize("found", [None, [], "x", {}, {"stage": "screen"}])
def test_what_is_no_record_is_refused(found: object) -> None:
    with pytest.raises(ValueError, match="Block"):
        from_json(Block, found)
