"""The harness itself: the same seed is the same scenario, budgets end it, failures shrink and can be played again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvbench.errors import UsageError
from kvbench.verify.campaign import Budget, campaign, play_batch
from kvbench.verify.draw import draw_scenario
from kvbench.verify.honest import honest_outputs
from kvbench.verify.play import Outcome, play
from kvbench.verify.scenario import Fault, Scenario
from kvbench.verify.shrink import failure_kind, shrink
from tests.verify.mutations import MUTATIONS


def test_the_code_as_it_stands_survives_three_thousand_steps() -> None:
    *_, tally = campaign(1_000_000, Budget(steps=3_000))
    assert tally.findings == []
    assert tally.steps >= 3_000
    assert tally.faults > 100


def test_a_seed_names_one_scenario_and_it_plays_the_same_twice() -> None:
    assert draw_scenario(7) == draw_scenario(7)
    assert draw_scenario(7) != draw_scenario(8)
    assert play(draw_scenario(7)) == play(draw_scenario(7))


def test_a_scenario_survives_the_way_through_its_file() -> None:
    for seed in range(20):
        scenario = draw_scenario(seed)
        assert Scenario.from_json(scenario.to_json()) == scenario


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 1}', '{"format": 99}', '{"format": 1, "asks": 3}', "\0"])
def test_a_file_that_is_no_scenario_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        Scenario.from_json(text)


def test_every_offered_value_of_a_named_setting_is_drawn() -> None:
    """What a suite can say, the harness plays: nothing is left out silently."""
    from kvbench.verify.draw import _named_settings

    drawn = [draw_scenario(seed).engine for seed in range(1500)]
    missing = {
        (name, value)
        for name, values in _named_settings()
        for value in values
        if value not in [engine.get(name) for engine in drawn]
    }
    assert missing == set()


def test_processes_play_the_same_seeds() -> None:
    *_, alone = campaign(50, Budget(steps=1))
    *_, together = campaign(50, Budget(steps=1), jobs=2)
    batch = play_batch(50, alone.scenarios, 0.02)
    assert alone.steps == sum(outcome.steps for _, outcome in batch)
    assert together.scenarios >= alone.scenarios


def test_an_answer_depends_on_every_token_of_the_prompt() -> None:
    ask = replace(draw_scenario(3).asks[0], prompt=(1, 2, 3), output=2, forced=None, stops=False, beams=0)
    other = replace(ask, prompt=(0, 2, 3))
    assert honest_outputs(ask) != honest_outputs(other)


def test_a_planted_fault_shrinks_to_a_few_requests_and_replays(monkeypatch: pytest.MonkeyPatch) -> None:
    MUTATIONS["believe_the_digest"](monkeypatch)
    *_, tally = campaign(0, Budget(steps=10_000))
    finding = tally.findings[0]
    scenario = draw_scenario(finding.seed)
    small = shrink(scenario, finding.failure, seconds=300)  # a bound for a stuck search; takes a tenth
    outcome = play(Scenario.from_json(small.to_json()))
    assert outcome.failure is not None
    assert failure_kind(outcome.failure) == failure_kind(finding.failure)
    assert len(small.asks) <= 3
    for left_out in range(len(small.faults)):
        fewer = replace(small, faults=small.faults[:left_out] + small.faults[left_out + 1 :])
        kind = failure_kind(play(fewer).failure or "none")
        assert kind != failure_kind(finding.failure), "a fault that the failure does not need was kept"


def test_shrinking_keeps_what_the_failure_needs() -> None:
    """A made-up failure that needs one fault, two requests and one setting: exactly these are left."""
    scenario = replace(draw_scenario(5), faults=tuple(Fault(turn, "evict", turn) for turn in range(9)))
    scenario = replace(scenario, engine={**scenario.engine, "batch_policy": "static"})
    needed = {ask.request_id for ask in scenario.asks[:2]}

    def run(candidate: Scenario) -> Outcome:
        fails = (
            needed <= {ask.request_id for ask in candidate.asks}
            and Fault(4, "evict", 4) in candidate.faults
            and candidate.engine.get("batch_policy") == "static"
        )
        return Outcome(1, 0, "broken at 17" if fails else None)

    small = shrink(scenario, "broken at 3", run=run)
    assert {ask.request_id for ask in small.asks} == needed
    assert small.faults == (Fault(4, "evict", 4),)
    assert small.engine == {"batch_policy": "static"}
    assert all(len(ask.prompt) == ask.output == 1 for ask in small.asks)
