"""A harness is worth what it finds: every planted fault is found within 10,000 steps."""

from __future__ import annotations

import pytest

from kvbench.verify.campaign import Budget, campaign
from tests.verify.mutations import MUTATIONS


@pytest.mark.parametrize("name", sorted(MUTATIONS))
def test_a_planted_fault_is_found_within_ten_thousand_steps(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    MUTATIONS[name](monkeypatch)
    *_, tally = campaign(0, Budget(steps=10_000))
    assert tally.findings, f"{MUTATIONS[name].__doc__} Not found in {tally.steps} steps"


def test_at_least_twelve_faults_are_planted() -> None:
    assert len(MUTATIONS) >= 12
