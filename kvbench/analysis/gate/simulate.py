"""Suites with known truth under the very rule that judges real ones: false alarms, power, false passes, coverage.

A process's value is exp(level + noise of its side), its noise of standard deviation `sd`. Thousands of suites are
judged at once, because every step of the rule works on arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvbench.analysis.gate.decide import FAIL, IMPROVED, INCONCLUSIVE, PASS, Evidence, Stage, decide
from kvbench.analysis.gate.shape import mode_distance
from kvbench.analysis.gate.statistics import Bools, Paired, paired
from kvbench.analysis.gate.types import Floats, Rule
from kvbench.analysis.gate.uniform import uniform

Codes = NDArray[np.int8]
Draw = Callable[[np.random.Generator, tuple[int, ...]], Floats]
"""(generator, [2 sides, …, blocks]) → noise of mean 0 and standard deviation 1 for every process"""

_CELLS = 1_500_000
"""Values drawn at once"""


@dataclass(frozen=True, slots=True)
class Simulated:
    """How often a rule said what, over suites of which the first `slowed` cases of each are slower by `effect`."""

    suites: int
    cases: int
    slowed: int
    failed_suites: int
    """Suites with a FAIL, of a case or suite-wide"""
    false_fails: int
    """Unchanged cases that FAIL"""
    false_improved: int
    found: int
    """Slowed cases that FAIL"""
    false_passes: int
    """Slowed cases that PASS"""
    passed: int
    """Unchanged cases that PASS"""
    inconclusive: int
    screened: int
    """Cases that were final at the screen"""

    @property
    def power(self) -> float:
        return self.found / (self.suites * self.slowed)

    @property
    def false_pass(self) -> float:
        return self.false_passes / (self.suites * self.slowed)

    @property
    def pass_rate(self) -> float:
        return self.passed / (self.suites * (self.cases - self.slowed))

    @property
    def false_suites(self) -> float:
        return self.failed_suites / self.suites


def simulate(
    *,
    suites: int,
    cases: int,
    sd: float,
    blocks: int = 10,
    confirm: int = 0,
    effect: float = 0.0,
    slowed: int = 0,
    noise: str = "normal",
    rule: Rule | None = None,
    seed: int = 0,
) -> Simulated:
    """Judge `suites` suites of `cases` cases in `blocks` blocks; with `confirm` > 0 in two stages.

    `slowed` cases of each suite are slower by the relative `effect`. There is no noise floor, so that nothing but the
    rule itself holds errors down.
    """
    rule = rule or Rule()
    rng = np.random.default_rng(seed)
    level = np.where(np.arange(cases) < slowed, np.log1p(effect), 0.0)
    totals = np.zeros(8, dtype=np.int64)
    step = max(1, _CELLS // (2 * cases * blocks))
    for start in range(0, suites, step):
        count = min(step, suites - start)
        totals += _chunk(rng, count, level, sd, blocks, confirm, slowed, NOISES[noise], rule)
    return Simulated(suites, cases, slowed, *(int(total) for total in totals))


def _chunk(
    rng: np.random.Generator,
    suites: int,
    level: Floats,
    sd: float,
    blocks: int,
    confirm: int,
    slowed: int,
    draw: Draw,
    rule: Rule,
) -> NDArray[np.int64]:
    sides = sd * draw(rng, (2, suites, level.size, blocks))
    differences = sides[1] - sides[0] + level[:, None]
    shape = differences.shape[:-1]
    code = _judged(paired(differences), sides, "screen" if confirm else "single", rule)
    final = np.full(shape, True) if not confirm else code == PASS
    if confirm and not final.all():
        code = np.where(final, code, _confirmed(rng, ~final, level, sd, confirm, draw, rule))
    suite_wide = uniform(differences, code != FAIL, rule)[0]
    changed, same = code[:, :slowed], code[:, slowed:]
    return np.array(
        [
            ((code == FAIL).any(axis=-1) | (suite_wide == FAIL)).sum(),
            (same == FAIL).sum(),
            (same == IMPROVED).sum(),
            (changed == FAIL).sum(),
            (changed == PASS).sum(),
            (same == PASS).sum(),
            (code == INCONCLUSIVE).sum(),
            final.sum(),
        ]
    )


def _confirmed(
    rng: np.random.Generator, asked: Bools, level: Floats, sd: float, blocks: int, draw: Draw, rule: Rule
) -> Codes:
    """Codes [suites, cases] of fresh blocks; what was not asked for has no test and stays INCONCLUSIVE."""
    sides = sd * draw(rng, (2, int(asked.sum()), blocks))
    fresh = paired(sides[1] - sides[0] + np.broadcast_to(level, asked.shape)[asked][:, None])
    doubt = np.zeros(asked.shape)
    doubt[asked] = _modes(sides, rule)
    whole = [np.full(asked.shape, np.nan) for _ in range(5)]
    for array, values in zip(whole, (fresh.theta, fresh.se, fresh.df, fresh.p_worse, fresh.p_better), strict=True):
        array[asked] = values
    evidence = Evidence(doubt, np.zeros(asked.shape), np.zeros(asked.shape, bool))
    return decide(Paired(*whole), evidence, "confirm", rule, 0.0).code


def _judged(test: Paired, sides: Floats, stage: Stage, rule: Rule) -> Codes:
    shape = test.theta.shape
    evidence = Evidence(_modes(sides, rule), np.zeros(shape), np.zeros(shape, bool))
    return decide(test, evidence, stage, rule, 0.0).code


def _modes(sides: Floats, rule: Rule) -> Floats:
    distance = mode_distance(sides).max(axis=0)
    return np.where(distance >= np.log1p(rule.margin), distance, 0.0)


def coverage(*, blocks: int, sd: float, trials: int, noise: str = "normal", seed: int = 0) -> float:
    """Share of `trials` in which the 95 % interval of a case holds its true effect."""
    sides = sd * NOISES[noise](np.random.default_rng(seed), (2, trials, blocks))
    test = paired(sides[1] - sides[0])
    return float(((test.lower(0.025) <= 0.0) & (test.upper(0.025) >= 0.0)).mean())


def _normal(rng: np.random.Generator, shape: tuple[int, ...]) -> Floats:
    return rng.standard_normal(shape)


def _heavy(rng: np.random.Generator, shape: tuple[int, ...]) -> Floats:
    """Student's t with 3 degrees of freedom: outliers on both sides."""
    return np.asarray(rng.standard_t(3, shape) / np.sqrt(3.0))


def _spikes(rng: np.random.Generator, shape: tuple[int, ...]) -> Floats:
    """Never faster, sometimes much slower: an exponential tail, as of a disturbed machine."""
    return rng.standard_exponential(shape) - 1.0


def _modal(rng: np.random.Generator, shape: tuple[int, ...]) -> Floats:
    """Each process is in one of two modes, three times as far apart as the noise within them is wide."""
    within, apart = np.sqrt(4.0 / 13.0), 3.0 * np.sqrt(4.0 / 13.0)
    slow = (rng.random(shape) < 0.5) - 0.5
    return np.asarray(within * rng.standard_normal(shape) + apart * slow)


def _drift(rng: np.random.Generator, shape: tuple[int, ...]) -> Floats:
    """Half of the variance is the machine's state, common to both sides of a block and to all cases of a suite, and
    correlated from block to block (lag 1: 0.8)."""
    state = np.empty((*shape[1:-2], 1, shape[-1]))
    state[..., 0] = rng.standard_normal(state.shape[:-1])
    for block in range(1, shape[-1]):
        state[..., block] = 0.8 * state[..., block - 1] + 0.6 * rng.standard_normal(state.shape[:-1])
    return np.asarray(np.sqrt(0.5) * (rng.standard_normal(shape) + state))


def _memory(rng: np.random.Generator, shape: tuple[int, ...]) -> Floats:
    """Each side's processes are correlated from block to block (lag 1: 0.3), which blocks should not be."""
    noise = rng.standard_normal(shape)
    for block in range(1, shape[-1]):
        noise[..., block] = 0.3 * noise[..., block - 1] + np.sqrt(0.91) * noise[..., block]
    return noise


NOISES: dict[str, Draw] = {
    "normal": _normal,
    "heavy": _heavy,
    "spikes": _spikes,
    "bimodal": _modal,
    "drift": _drift,
    "memory": _memory,
}
