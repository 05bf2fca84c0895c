"""Every checker on runs whose answer is known: the claim holds, does not, is hidden by noise, or has no cases."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kvbench.analysis.claims.evidence import Evidence
from kvbench.analysis.claims.registry import CHECKERS
from kvbench.analysis.claims.types import WORDS
from kvbench.spec.load import load_suite, suite_names
from tests.analysis.claims.made_up import MADE_UP, WINDOWS
from tests.analysis.claims.runs import checked, evidence, words

SQUARE = "Without caching prefill grows with the square of the conversation"
ARITHMETIC = {
    "fp8 and int8 halve KV bytes",
    "A latent cache needs a fraction of the bytes of MHA",
    "Grouped heads come near it",
}
"""Follows from the settings: neither noise nor a single sample makes it unclear."""


def made_up(suite: str, holds: bool, **options: Any) -> Evidence:
    engine, kernel = MADE_UP[suite](holds)
    return evidence(engine, kernel, models=WINDOWS, **options)


def test_every_suite_that_ships_has_a_checker_and_no_other() -> None:
    assert sorted(CHECKERS) == sorted(suite_names())
    assert set(MADE_UP) == set(CHECKERS) - {"smoke"}
    assert all(load_suite(name).suite.claim for name in CHECKERS)


@pytest.mark.parametrize("suite", MADE_UP)
def test_a_run_in_which_all_of_the_claim_holds(suite: str) -> None:
    found = words(suite, made_up(suite, True))
    assert set(found.values()) == {"held"}, found


@pytest.mark.parametrize("suite", MADE_UP)
def test_a_run_in_which_none_of_it_does(suite: str) -> None:
    found = words(suite, made_up(suite, False))
    assert set(found.values()) == {"not held"}, found


@pytest.mark.parametrize("suite", MADE_UP)
@pytest.mark.parametrize("options", [{"samples": 1}, {"spread": 1.5}], ids=["one sample", "noise"])
def test_one_sample_or_noise_makes_all_but_arithmetic_unclear(suite: str, options: dict[str, Any]) -> None:
    found = {
        claim: word for claim, word in words(suite, made_up(suite, True, **options)).items() if claim not in ARITHMETIC
    }
    if "samples" in options:
        assert set(found.values()) <= {"unclear"}, found
    else:
        assert "not held" not in found.values(), found
        assert "unclear" in found.values(), found


@pytest.mark.parametrize("suite", CHECKERS)
def test_without_its_cases_every_part_is_not_tested_and_says_what_is_missing(suite: str) -> None:
    for run in (evidence(), evidence([({"seats": 1}, {"wall_s": 1.0})])):
        found = [one for one in checked(suite, run) if one.claim != "The engine runs under every setting"]
        if suite != "smoke" or not run.cases:
            assert {one.held for one in found} == {"not tested"}
        assert all(one.because for one in found)


@pytest.mark.parametrize("suite", MADE_UP)
def test_one_modelled_sample_is_enough_and_says_that_it_is_modelled(suite: str) -> None:
    found = checked(suite, made_up(suite, True, samples=1, spread=0.0, clock="virtual"))
    assert {one.held for one in found} == {"held"}
    assert all(one.is_modelled and one.because.startswith("modelled: ") for one in found)


@pytest.mark.parametrize("suite", MADE_UP)
def test_failed_cases_never_make_a_claim_hold_or_fail(suite: str) -> None:
    engine, kernel = MADE_UP[suite](True)
    everything = range(len(engine) + len(kernel))
    assert set(words(suite, made_up(suite, True, failed=everything)).values()) == {"not tested"}
    for number in everything:
        assert "not held" not in words(suite, made_up(suite, True, failed=[number])).values()


@pytest.mark.parametrize("suite", MADE_UP)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), 0.0, -1.0])
def test_numbers_that_are_none_do_no_harm_and_verdicts_are_plain_json(suite: str, value: float) -> None:
    engine, kernel = MADE_UP[suite](True)
    poisoned = [(axes, {name: [value] * 5 for name in metrics}) for axes, metrics in engine]
    for one in checked(suite, evidence(poisoned, kernel, models=WINDOWS)):
        json.dumps([one.claim, one.because, one.numbers], allow_nan=False)


SMOKE = {"requests_total": [8.0] * 5, "requests_finished": [8.0] * 5, "prefix_cache_hits": 9.0, "host_promotions": 3.0}
TIERED = {"prefix_cache": "hash", "offload": "host"}


def test_smoke_holds_when_every_case_runs_answers_hits_and_promotes() -> None:
    assert set(words("smoke", evidence([(TIERED, SMOKE)])).values()) == {"held"}


@pytest.mark.parametrize(
    ("change", "claim"),
    [
        ({"requests_finished": [7.0] * 5}, "It answers the same requests, all of them"),
        ({"prefix_cache_hits": 0.0}, "Every prefix cache finds something"),
        ({"host_promotions": 0.0}, "Every tier gives blocks back"),
    ],
)
def test_one_case_that_does_not_is_enough(change: dict[str, Any], claim: str) -> None:
    found = words("smoke", evidence([(TIERED, SMOKE), ({**TIERED, "block_size": 8}, {**SMOKE, **change})]))
    assert [name for name, word in found.items() if word != "held"] == [claim]


def test_a_crash_under_any_setting_refutes_smoke() -> None:
    run = evidence([(TIERED, SMOKE), ({"block_size": 8}, SMOKE)], failed=[1])
    assert words("smoke", run)["The engine runs under every setting"] == "not held"


@pytest.mark.parametrize("suite", CHECKERS)
def test_no_checker_trips_over_the_cases_of_another_suite_or_over_odd_values(suite: str) -> None:
    """Anybody may call a suite `offload` and fill it with something else."""
    odd: tuple[Any, ...] = ({"kind": "uniform", "low": 1, "high": 9}, [1, 2], "auto", None, True, -1, 0.5)
    for other in MADE_UP:
        engine, kernel = MADE_UP[other](True)
        strange = [
            ({**axes, name: odd[n % len(odd)]}, metrics) for n, (axes, metrics) in enumerate(engine) for name in axes
        ]
        for cases in (engine, [*engine, *strange]):
            for one in checked(suite, evidence(cases, kernel, models=WINDOWS)):
                assert one.held in WORDS
                json.dumps([one.because, one.numbers], allow_nan=False)


def test_drafts_that_are_wrong_say_nothing_of_the_latency_of_right_ones() -> None:
    plain = ({"speculation": "none"}, {"tpot_p50_s": 0.01})
    wrong = ({"speculation": "prompt-lookup"}, {"tpot_p50_s": 0.02, "accepted_share": 0.1})
    (verdict,) = (one for one in checked("speculative", evidence([plain, wrong])) if "Latency" in one.claim)
    assert (verdict.held, verdict.because) == ("not tested", "these drafts are mostly wrong")


def conversations(power: float, numbers: tuple[int, ...] = (1, 2, 4, 8)) -> Evidence:
    """Without caching the prefill of a conversation of n turns grows with n to this power."""
    return evidence(
        [
            (
                {"turns": turns, "prefix_cache": "none"},
                {"prefill_tokens_total": 4000.0 * turns ** (power - 1), "requests_total": [40.0] * 5},
            )
            for turns in numbers
        ]
    )


@pytest.mark.parametrize(
    ("power", "word"), [(1.0, "not held"), (1.2, "not held"), (2.0, "held"), (3.0, "not held"), (0.5, "not held")]
)
def test_only_growth_with_the_square_is_growth_with_the_square(power: float, word: str) -> None:
    assert words("prefix-cache", conversations(power))[SQUARE] == word


def test_two_lengths_of_conversation_do_not_tell_the_square_from_other_growth() -> None:
    assert words("prefix-cache", conversations(2.0, (1, 8)))[SQUARE] == "not tested"


def test_where_nobody_is_preempted_nothing_is_said_of_victims() -> None:
    engine, _ = MADE_UP["preemption"](True)
    for count, word in ((0.0, "not tested"), (7.0, "held")):
        run = evidence([(axes, {**metrics, "preemptions": count}) for axes, metrics in engine])
        assert set(words("preemption", run).values()) == {word}


@pytest.mark.parametrize("suite", ["admission", "systems"])
def test_one_pause_in_one_sample_refutes_that_there_are_none(suite: str) -> None:
    engine, _ = MADE_UP[suite](True)
    never = [0.0, 0.0, 0.0, 0.0, 0.0]
    for counts, word in ((never, "held"), ([*never[:4], 1.0], "not held")):
        run = evidence(
            [(axes, {**m, "preemptions": counts if m["preemptions"] == 0 else m["preemptions"]}) for axes, m in engine]
        )
        assert next(held for claim, held in words(suite, run).items() if "pauses" in claim) == word
