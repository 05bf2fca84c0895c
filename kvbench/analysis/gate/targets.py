"""What the rule promises, each promise held against simulated suites."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from kvbench.analysis.gate.simulate import Simulated, coverage, simulate

_CONFIDENCE = 0.99


@dataclass(frozen=True, slots=True)
class Target:
    """One promise: `hits` of `trials` shall be at least, or at most, a share."""

    name: str
    setting: str
    least: float
    most: float
    hits: int
    trials: int

    @property
    def share(self) -> float:
        return self.hits / self.trials

    def interval(self) -> tuple[float, float]:
        """Clopper and Pearson's 99 % interval of the share."""
        from scipy.special import betaincinv

        tail = (1.0 - _CONFIDENCE) / 2.0
        rest = self.trials - self.hits
        low = float(betaincinv(self.hits, rest + 1, tail)) if self.hits else 0.0
        return low, float(betaincinv(self.hits + 1, rest, 1.0 - tail)) if rest else 1.0

    @property
    def holds(self) -> bool:
        """The promise is compatible with what was seen: the interval reaches into it."""
        low, high = self.interval()
        return high >= self.least and low <= self.most


def targets(suites: int, seed: int = 0) -> Iterator[Target]:
    """Every promise, over `suites` simulated suites a line (false alarms over as many, in each of four settings)."""
    yield from _false_alarms(suites, seed)
    yield from _power(suites, seed + 100)
    yield from _passes(suites, seed + 200)
    for number, (blocks, noise) in enumerate((b, n) for n in ("normal", "drift") for b in (6, 10, 24)):
        trials = 20 * suites
        share = coverage(blocks=blocks, sd=0.02, trials=trials, noise=noise, seed=seed + 300 + number)
        yield Target("interval coverage", f"R = {blocks}, {noise} noise", 0.93, 0.97, round(share * trials), trials)


def _false_alarms(suites: int, seed: int) -> Iterator[Target]:
    for number, (sd, confirm) in enumerate(((0.01, 24), (0.03, 0), (0.03, 24), (0.08, 24))):
        found = simulate(suites=suites, cases=120, sd=sd, confirm=confirm, seed=seed + number)
        yield Target(
            "false FAIL of a suite",
            f"120 cases, SD {sd:.0%}, {_stages(10, confirm)}",
            0.0,
            0.01,
            found.failed_suites,
            suites,
        )


def _power(suites: int, seed: int) -> Iterator[Target]:
    rows = (
        (0.01, 16, 0.03, 0.90),
        (0.01, 16, 0.05, 0.99),
        (0.01, 0, 0.05, 0.99),
        (0.02, 24, 0.03, 0.85),
        (0.02, 24, 0.05, 0.95),
    )
    for number, (sd, confirm, effect, least) in enumerate(rows):
        found = _slowed(suites, sd, confirm, effect, seed + number)
        setting = f"60 cases, SD {sd:.0%}, {_stages(10, confirm)}, 6 at +{effect:.0%}"
        yield Target("power", setting, least, 1.0, found.found, found.suites * found.slowed)


def _passes(suites: int, seed: int) -> Iterator[Target]:
    for number, (sd, confirm) in enumerate(((0.01, 24), (0.02, 0), (0.02, 24), (0.08, 24))):
        found = _slowed(suites, sd, confirm, 0.03, seed + number)
        setting = f"60 cases, SD {sd:.0%}, {_stages(10, confirm)}, 6 at +3%"
        yield Target("false PASS", setting, 0.0, 0.05, found.false_passes, found.suites * found.slowed)
    for number, confirm in enumerate((0, 16), start=10):
        found = simulate(suites=suites, cases=60, sd=0.01, blocks=8, confirm=confirm, seed=seed + number)
        setting = f"60 cases, SD 1%, {_stages(8, confirm)}"
        yield Target("PASS of unchanged code", setting, 0.95, 1.0, found.passed, suites * 60)


def _slowed(suites: int, sd: float, confirm: int, effect: float, seed: int) -> Simulated:
    return simulate(suites=suites, cases=60, sd=sd, confirm=confirm, effect=effect, slowed=6, seed=seed)


def _stages(blocks: int, confirm: int) -> str:
    return f"{blocks} + {confirm} blocks" if confirm else f"{blocks} blocks"
