"""Recorded series: what several nights (or sessions) measured, as blocks of two sides; `recordings.py` reads them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from kvbench.analysis.gate.types import CaseBlocks, Worse


@dataclass(slots=True)
class Series:
    """The values of one case of one session: one side, or two that belong together block by block."""

    session: str
    case: str
    metric: str
    worse: Worse
    baseline: list[float] = field(default_factory=list)
    candidate: list[float] = field(default_factory=list)
    order: list[int] = field(default_factory=list)
    """+1 where the baseline ran first; empty where unknown"""


@dataclass(frozen=True, slots=True)
class Night:
    """One suite of unchanged code on two sides, ready to be judged."""

    name: str
    design: str
    cases: tuple[CaseBlocks, ...]
    dropped: int
    """Series with fewer than five blocks of finite positive values on both sides"""


@dataclass(frozen=True, slots=True)
class Recording:
    """All series of the files given."""

    series: tuple[Series, ...]
    same_code: bool
    """Both sides are the same code, so that they may be held against each other"""

    @property
    def has_pairs(self) -> bool:
        return self.same_code and any(one.baseline and one.candidate for one in self.series)


LEAST_BLOCKS = 5
Dealt = tuple[Series, list[float], list[float], list[int]]
"""A series, its two sides, and the order of the sides"""


def pairs(recording: Recording) -> list[Night]:
    """Both sides as they were recorded, block by block."""
    return [
        _night(name, "pairs", [(one, one.baseline, one.candidate, one.order) for one in group])
        for name, group in _sessions(recording.series)
    ]


def halves(recording: Recording, seed: int) -> list[Night]:
    """Each side of a session against itself: two runs in a row are a block, and chance says which is which."""
    nights = []
    for side in ("baseline", "candidate"):
        for name, group in _sessions(recording.series):
            rng = np.random.default_rng([seed, *f"{name} {side}".encode()])
            dealt = [(one, *_dealt(getattr(one, side), rng)) for one in group if getattr(one, side)]
            if dealt:
                nights.append(_night(f"{name} {side}", "halves", dealt))
    return nights


def neighbours(recording: Recording) -> list[Night]:
    """The baseline of each session against that of the next one: unchanged code, but another night."""
    groups = [(name, {(one.case, one.metric): one for one in group}) for name, group in _sessions(recording.series)]
    nights = []
    for (name, before), (_, after) in pairwise(groups):
        both: list[Dealt] = [
            (one, one.baseline, after[key].baseline, [])
            for key, one in before.items()
            if key in after and one.baseline and after[key].baseline
        ]
        if both:
            nights.append(_night(f"{name} and next", "neighbours", both))
    return nights


def _sessions(series: Sequence[Series]) -> Iterator[tuple[str, list[Series]]]:
    """In the order of their names, which for dates is that of time."""
    groups: dict[str, list[Series]] = {}
    for one in series:
        groups.setdefault(one.session, []).append(one)
    yield from sorted(groups.items())


def _dealt(values: Sequence[float], rng: np.random.Generator) -> tuple[list[float], list[float], list[int]]:
    sound = [value for value in values if np.isfinite(value) and value > 0]
    blocks = len(sound) // 2
    rows = np.array(sound[: 2 * blocks], dtype=np.float64).reshape(blocks, 2)
    order = rng.permutation(np.resize(np.array([1, -1]), blocks))
    first, second = rows[:, 0], rows[:, 1]
    one, other = np.where(order > 0, first, second), np.where(order > 0, second, first)
    return one.tolist(), other.tolist(), order.tolist()


def _night(name: str, design: str, dealt: Sequence[Dealt]) -> Night:
    cases, dropped = [], 0
    for one, baseline, candidate, order in dealt:
        blocks = min(len(baseline), len(candidate))
        sides = np.array([baseline[:blocks], candidate[:blocks]], dtype=np.float64)
        sound = (np.isfinite(sides) & (sides > 0)).all(axis=0)
        if sound.sum() < LEAST_BLOCKS:
            dropped += 1
            continue
        signs = np.asarray(order, dtype=np.int8)
        signs = signs[:blocks][sound] if signs.size else signs
        cases.append(CaseBlocks(one.case, one.metric, one.worse, sides[0, sound], sides[1, sound], signs))
    return Night(name, design, tuple(cases), dropped)
