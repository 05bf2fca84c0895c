"""How often a verdict is wrong where nothing is the matter: by simulation, at the rates that docs/claims.md gives."""

from __future__ import annotations

import math

import numpy as np
import pytest

from kvbench.analysis.claims.best import best_among
from kvbench.analysis.claims.estimates import Estimate, Finding
from kvbench.analysis.claims.judge import DIFFERENT, Claim, differs, everywhere, more_than
from tests.analysis.claims.runs import evidence

CLAIM = Claim("it is more", "a over b", more_than(1))
RUNS = 2000


def simulated(rng: np.random.Generator, effect: float, samples: int) -> Estimate:
    """A log ratio of `effect`, measured in so many processes that scatter by a tenth."""
    values = rng.normal(effect, 0.1, samples)
    return Estimate(
        "", float(values.mean()), float(values.std(ddof=1) / math.sqrt(samples)), samples - 1, samples, True
    )


def rate(word: str, effects: list[float], samples: int) -> float:
    rng = np.random.default_rng(7)
    found = (Finding(tuple(simulated(rng, effect, samples) for effect in effects)) for _ in range(RUNS))
    return sum(everywhere(CLAIM, one).held == word for one in found) / RUNS


def most(chance: float) -> float:
    """What a true rate of `chance` exceeds once in a thousand simulations."""
    return chance + 3.1 * math.sqrt(chance * (1 - chance) / RUNS)


@pytest.mark.parametrize("samples", [3, 5])
@pytest.mark.parametrize("effects", [[0.0], [0.0, 2.0], [0.0, 0.0, 0.0]])
def test_a_claim_that_is_not_so_somewhere_holds_in_at_most_one_run_of_forty(effects: list[float], samples: int) -> None:
    assert rate("held", effects, samples) <= most(0.025)


@pytest.mark.parametrize("places", [1, 4])
def test_a_claim_that_is_so_everywhere_is_refuted_in_at_most_one_run_of_forty(places: int) -> None:
    """The effect is just there, and so are chances to miss it; within 2 % of none is no effect, hence above."""
    assert rate("not held", [0.02] * places, 4) <= most(0.025)


@pytest.mark.parametrize(
    ("effects", "word"), [([0.0], "held"), ([0.019], "held"), ([0.0198] * 4, "held"), ([0.021], "not held")]
)
def test_a_difference_is_claimed_or_denied_wrongly_in_at_most_one_run_of_forty(effects: list[float], word: str) -> None:
    rng = np.random.default_rng(9)
    claim = Claim("they differ", "a over b", DIFFERENT)
    findings = (Finding(tuple(simulated(rng, effect, 4) for effect in effects)) for _ in range(RUNS))
    assert sum(differs(claim, one).held == word for one in findings) / RUNS <= most(0.025)


def test_of_equal_settings_none_is_often_called_the_best() -> None:
    rng = np.random.default_rng(5)
    sizes, words = (4, 16, 32, 64, 128), []
    for _ in range(300):
        cases = [({"block_size": s}, {"output_tokens_per_s": np.exp(rng.normal(4, 0.1, 4)).tolist()}) for s in sizes]
        run = evidence(cases, samples=4)
        words.append(best_among(CLAIM, run, "output_tokens_per_s", "block_size", (16, 32, 64)).held)
    assert words.count("unclear") >= 0.93 * len(words)
