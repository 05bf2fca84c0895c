"""Scenarios in which a verification found a fault, as it shrank them; the code of their day fails each."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvbench.verify.play import play
from kvbench.verify.scenario import Scenario

FOUND = sorted((Path(__file__).parent.parent / "fixtures" / "scenarios").glob("*.json"))


@pytest.mark.parametrize("path", FOUND, ids=lambda path: path.stem)
def test_a_fault_that_was_found_stays_mended(path: Path) -> None:
    outcome = play(Scenario.from_json(path.read_text()))
    assert outcome.failure is None
    assert outcome.steps > 0
