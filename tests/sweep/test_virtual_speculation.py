"""Speculation under the virtual clock from the command line: refused undeclared, priced by drafts and turns."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import kvbench
from kvbench.cli.main import run as command_line
from kvbench.costmodel.model import CostModel
from kvbench.costmodel.profiles import virtual_device
from kvbench.costmodel.roofline import roofline
from kvbench.geometry.presets import preset
from kvbench.store.run import open_run

SUITE = """
name = "mini"
[model]
name = "tiny-llama"
[engine]
kv_memory = "1MiB"
max_context = 256
max_sequences = 1
draft_layers = 1
draft_model = "tiny-llama"
draft_tokens = 4
weight_dtype = "bf16"
[workload]
requests = 2
input_tokens = 16
output_tokens = 41
outputs = "sampled"
[axes]
"engine.speculation" = ["none", "prompt-lookup", "first-layers", "draft-model"]
"""
RATES = roofline(virtual_device("H100-SXM")).rates


def sweep(folder: Path, *arguments: str) -> tuple[int, kvbench.Run]:
    folder.mkdir()
    (folder / "mini.toml").write_text(SUITE)
    code = command_line(["sweep", str(folder / "mini.toml"), "--clock", "virtual", "--out", str(folder), *arguments])
    return code, open_run(next(folder.glob("*/plan.json")).parent)


def drafting_s(layers: int, turns: int) -> float:
    """Eight steps bring five tokens each; a turn is a decode step of so many layers."""
    geometry = preset("tiny-llama")
    (group,) = geometry.groups
    small = replace(geometry, num_layers=layers, groups=(replace(group, layers=tuple(range(layers))),))
    cost = CostModel(small, RATES, weight_dtype="bf16", kv_dtype="fp32", block_size=16)
    one = np.ones(1, np.int32)
    return sum(
        cost.step_s(cost.features(np.array([16 + 5 * step + turn]), one, 1, int(turn < 4)))
        for step in range(8)
        for turn in range(turns)
    )


def test_a_declared_rate_decides_and_drafts_cost_a_decode_step_of_what_drafts(tmp_path: Path) -> None:
    code, found = sweep(tmp_path / "right", "-a", "acceptance_rate=1.0")
    assert code == 0
    cases = {case["speculation"]: case for case in found.cases.to_dict("records")}
    assert cases["none"]["accepted_share"] != 1.0
    first = {
        record["case_id"]: record["decode_time_s"]
        for record in found.requests.to_dict("records")
        if record["request_id"] == 0
    }
    seconds = {name: first[case["case_id"]] for name, case in cases.items()}
    for name in ("prompt-lookup", "first-layers", "draft-model"):
        assert (cases[name]["accepted_share"], cases[name]["tokens_per_decode"]) == (1.0, 5.0)
    looked_up = seconds["prompt-lookup"]
    assert looked_up < seconds["none"]
    assert seconds["first-layers"] - looked_up == pytest.approx(drafting_s(1, 4), rel=1e-9)
    layers = preset("tiny-llama").num_layers
    assert seconds["draft-model"] - looked_up == pytest.approx(drafting_s(layers, 5), rel=1e-9)


def test_drafts_that_are_never_right_leave_one_token_a_step(tmp_path: Path) -> None:
    code, found = sweep(tmp_path / "wrong", "-a", "acceptance_rate=0.0", "-a", "speculation=prompt-lookup")
    assert code == 0
    (case,) = found.cases.to_dict("records")
    assert (case["accepted_share"], case["tokens_per_decode"]) == (0.0, 1.0)


def test_without_a_declared_rate_cases_that_speculate_are_refused_with_the_way_out(tmp_path: Path) -> None:
    code, found = sweep(tmp_path / "undeclared")
    assert code != 0
    for case in found.cases.to_dict("records"):
        is_plain = case["speculation"] == "none"
        assert case["status"] == ("ok" if is_plain else "skipped")
        assert is_plain or "needs acceptance_rate" in case["error"]
