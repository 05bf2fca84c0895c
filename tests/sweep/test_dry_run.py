"""A dry run says what a sweep would do, and measures nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from kvbench.spec.load import LoadedSuite
from kvbench.sweep import dry_run
from kvbench.sweep.estimate import Estimate
from kvbench.sweep.planner import make_plan

Mini = Callable[..., LoadedSuite]


@pytest.fixture
def found(
    mini: Mini, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> dict[str, str]:
    suite = mini(
        ('kv_memory = "1MiB"\n', ""), ('"engine.block_size" = [4, 16]', '"engine.kv_memory" = ["1MiB", "100TiB"]')
    )
    plan = make_plan(suite, repetitions=3)
    expected = Estimate({plan.cases[0].job.case_id: 2.0}, 10.0, "a run of yesterday")
    monkeypatch.setattr(dry_run, "estimate", lambda *_: expected)
    shown = {}
    for form in ("json", "table", "md", "csv"):
        dry_run.show(plan, tmp_path, form)
        shown[form] = capsys.readouterr().out
    assert not list(tmp_path.glob("mini-*"))
    return shown


def test_m07_a_dry_run_says_how_many_how_long_how_much_and_what_cannot_fit(found: dict[str, str]) -> None:
    """Cases and repetitions, expected time and its source, memory of every case, and the arithmetic of a refusal."""
    facts = json.loads(found["json"])
    fits, too_large = facts["cases"]
    assert (len(facts["cases"]), facts["repetitions"]) == (2, 3)
    assert (facts["expected_total_s"], facts["expected_from"]) == (10.0, "a run of yesterday")
    assert (fits["kv_bytes"], fits["expected_s"], fits["refusal"]) == (1 << 20, 2.0, None)
    assert fits["memory_bytes"] > 1 << 20
    assert too_large["kv_bytes"] == 100 << 40
    assert "KV 100 TiB" in too_large["refusal"]
    assert "is free" in too_large["refusal"]
    assert too_large["expected_s"] is None


@pytest.mark.parametrize("form", ["table", "md"])
def test_m07_people_are_told_the_same(found: dict[str, str], form: str) -> None:
    assert "2 cases × 3 repetitions" in found[form]
    assert "a run of yesterday" in found[form]
    assert "cannot run" in found[form]
