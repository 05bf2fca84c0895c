"""Stored runs: sessions of another time, held against each other by their means, and the trend since a pinned one.

Sides that did not run in turns differ by whatever changed between their sessions: machine, temperature, neighbours.
That difference shows only between sessions, so the session is the unit, and below three of them a FAIL is advice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

import numpy as np

from kvbench.analysis.gate.decide import Evidence, decide
from kvbench.analysis.gate.examine import Examined, problems
from kvbench.analysis.gate.rules import as_advice, blank_verdict, case_verdict
from kvbench.analysis.gate.statistics import Paired, from_moments
from kvbench.analysis.gate.types import CaseBlocks, CaseVerdict, Floats, Reason, Rule, SuiteVerdict, Worse

LEAST_SESSIONS = 3
Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class StoredSession:
    """One run on one day: (case, metric) → the values of its processes."""

    name: str
    values: Mapping[Key, Floats]
    worse: Mapping[Key, Worse] = field(default_factory=dict)
    """The bad direction of a metric; `higher` where it is not said"""


def judge_sessions(
    baseline: Sequence[StoredSession], candidate: Sequence[StoredSession], rule: Rule | None = None
) -> SuiteVerdict:
    """Two-sample t test, one variance, on the means of the sessions' logarithms. Where the baseline of any case has
    fewer than three sessions, the processes are tested instead (Welch), and the verdict is advice.

    There is no suite-wide test: sessions are too few for it.
    """
    rule = replace(rule or Rule(), least_blocks=1)
    keys = dict.fromkeys(chain.from_iterable(session.values for session in (*baseline, *candidate)))
    sides = [(_values(baseline, key), _values(candidate, key)) for key in keys]
    worse = [_worse((*baseline, *candidate), key) for key in keys]
    examined = [_examined(key, w, old, new) for key, w, (old, new) in zip(keys, worse, sides, strict=True)]
    advisory = any(len(old) < LEAST_SESSIONS for old, _ in sides)
    sound = [one for one in examined if not one.invalid]
    moments = [_moments(one, old, new) for one, (old, new) in zip(examined, sides, strict=True) if not one.invalid]
    columns = [np.array(column, dtype=np.float64) for column in zip(*moments, strict=True)]
    test = from_moments(*columns) if sound else None
    verdicts = _verdicts(examined, sound, test, rule)
    return SuiteVerdict(
        cases=tuple(as_advice(verdict) if advisory else verdict for verdict in verdicts),
        uniform=None,
        rule=rule,
        noise_floor=float("nan"),
        advisory=advisory,
    )


def trend(
    reference: Sequence[StoredSession], later: Sequence[StoredSession], rule: Rule | None = None
) -> list[tuple[str, SuiteVerdict]]:
    """Every later session, alone, against the pinned reference: a creep of half a percent a week is found when it adds
    up to the margin, which no comparison with yesterday would find."""
    return [(session.name, judge_sessions(reference, [session], rule)) for session in later]


def _verdicts(
    examined: Sequence[Examined], sound: Sequence[Examined], test: Paired | None, rule: Rule
) -> list[CaseVerdict]:
    blanks = [blank_verdict(one, "sessions", 0.0) for one in examined]
    if test is None:
        return blanks
    clean = Evidence.clean(test.theta.shape)
    decided = decide(test, replace(clean, floor=np.array([one.floor for one in sound])), "sessions", rule, 0.0)
    places = {id(one): at for at, one in enumerate(sound)}
    return [
        blank if one.invalid else case_verdict(blank, one, places[id(one)], test, decided, rule)
        for blank, one in zip(blanks, examined, strict=True)
    ]


def _values(sessions: Sequence[StoredSession], key: Key) -> list[Floats]:
    """Of every session that has the case, its values; a session without any value of it still counts as one."""
    return [np.asarray(session.values[key], dtype=np.float64) for session in sessions if key in session.values]


def _worse(sessions: Sequence[StoredSession], key: Key) -> Worse:
    return next((session.worse[key] for session in sessions if key in session.worse), "higher")


def _examined(key: Key, worse: Worse, old: Sequence[Floats], new: Sequence[Floats]) -> Examined:
    """The case as one value a session; its differences are those of all pairs of sessions."""
    whole = CaseBlocks(*key, worse, _joined(old), _joined(new))
    invalid = tuple(reason for reason in problems(whole) if reason is not Reason.UNPAIRED)
    if not invalid and any(session.size == 0 for session in (*old, *new)):
        invalid = (Reason.NO_SAMPLES,)
    if invalid:
        return Examined(whole, np.zeros(0), 0.0, 0.0, 0.0, 1.0, noisy=False, invalid=invalid)
    means = [np.array([np.log(session).mean() for session in side]) for side in (old, new)]
    differences = (means[1][:, None] - means[0][None, :]).ravel()
    case = replace(whole, baseline=np.exp(means[0]), candidate=np.exp(means[1]))
    return Examined(case, differences if worse == "higher" else -differences, 0.0, 0.0, 0.0, 1.0, noisy=False)


def _joined(sessions: Sequence[Floats]) -> Floats:
    return np.concatenate(sessions) if sessions else np.zeros(0)


def _moments(one: Examined, old: Sequence[Floats], new: Sequence[Floats]) -> tuple[float, float, float]:
    """(mean difference, standard error, degrees of freedom)."""
    if len(old) >= LEAST_SESSIONS:
        sides = [np.log(side) for side in (one.case.baseline, one.case.candidate)]
        df = sides[0].size + sides[1].size - 2
        spread = sum(float(side.var()) * side.size for side in sides) / df
        return float(one.differences.mean()), (spread * sum(1.0 / side.size for side in sides)) ** 0.5, float(df)
    return _by_processes(one, [np.log(_joined(side)) for side in (old, new)])


def _by_processes(one: Examined, sides: Sequence[Floats]) -> tuple[float, float, float]:
    gap = float(sides[1].mean() - sides[0].mean())
    theta = gap if one.case.worse == "higher" else -gap
    if min(side.size for side in sides) < 2:
        return theta, float("nan"), 0.0
    errors = [float(side.var(ddof=1)) / side.size for side in sides]
    total = sum(errors)
    if total == 0.0:
        return theta, 0.0, float(min(side.size for side in sides) - 1)
    df = total**2 / sum(error**2 / (side.size - 1) for error, side in zip(errors, sides, strict=True))
    return theta, total**0.5, df
