"""The story of a tuning: for every shape search, measure the best again, choose, keep. Torch-free.

Trials run in child processes (`tune/worker.py`); here is who is tried next, and what is made of the answers.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvbench import __version__
from kvbench.errors import CannotRunError, ExitCode, KvbenchError
from kvbench.store.parts import now
from kvbench.tune.child import Bench, UntunableError
from kvbench.tune.finals import RULE, Choice, choose, finalists
from kvbench.tune.progress import TuneProgress, spelled
from kvbench.tune.search import Search, place_of
from kvbench.tune.session import WINNERS, Session, ShapeRecord, Start
from kvbench.tune.space import Space
from kvbench.tuned.files import keep, read_store, write_document
from kvbench.tuned.key import TunedKey, key_of
from kvbench.tuned.winner import Winner
from kvbench.units import format_seconds

if TYPE_CHECKING:
    from kvbench.tune.narrowing import Narrow
    from kvbench.tune.tunable import Tunable
    from kvbench.tuned.table import TunedTable
    from kvbench_kernels.specs import KernelShape

NEIGHBOURS = 3
"""Winners of the likest shapes that a search begins with, after the default"""
_TRUST_S = 1e-12


class TuneInterruptedError(KvbenchError):
    """Ctrl-C or a termination signal; what was finished is kept."""

    exit_code = ExitCode.INTERRUPTED


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a shape: a winner, or why there is none."""

    key: TunedKey
    winner: Winner | None
    failure: str | None = None
    statuses: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class Tuning:
    """Everything that a tuning needs; `store` None is the user's cache. `reference` is the tunable's name or
    `module:Class`, as trial processes look it up. `narrow` leaves of a space what is worth a launch."""

    tunable: Tunable
    reference: str
    shapes: list[KernelShape]
    device: str
    threads: int
    session: Session
    store: Path | None = None
    narrow: Narrow | None = None
    _unkept: str | None = None
    """Why winners are not in the store"""

    def run(self, progress: TuneProgress) -> list[Outcome]:
        """One outcome per shape. Raises `TuneInterruptedError` after Ctrl-C, `CannotRunError` when the folder cannot be
        written, or winners were found and the store could not take them."""
        with self.session.writing():
            return self._run(progress)

    def _run(self, progress: TuneProgress) -> list[Outcome]:
        found = read_store(self.store)
        for problem in found.problems:
            progress.note(problem)
        outcomes: list[Outcome] = []
        try:
            for number in range(len(self.shapes)):
                outcomes.append(self._shape(number, read_store(self.store).table, progress))
                self.session.write_tables()
        except KeyboardInterrupt:
            self.session.write_tables()
            path = self.session.path
            raise TuneInterruptedError(
                f"interrupted; finished trials are in {path}", hint=f"go on with kvbench tune --resume {path}"
            ) from None
        winners = [outcome.winner for outcome in outcomes if outcome.winner is not None]
        path = self.session.path / WINNERS
        write_document(path, winners)
        if self._unkept is not None:
            raise CannotRunError(
                f"{self._unkept}; the winners are in {path} only",
                hint=f"kvbench tune import {path} takes them in once there is a cache to write",
            )
        return outcomes

    def _shape(self, number: int, table: TunedTable, progress: TuneProgress) -> Outcome:
        shape, record, plan = self.shapes[number], self.session.records[number], self.session.plan
        key = key_of(self.tunable.name, self.tunable.page, self.tunable.compiler, self.device, shape)
        space = self._space(shape, record)
        progress.shape(key.label, len(space), len(record.trials))
        bench = Bench(self.reference, asdict(shape), self.tunable.device, plan["seed"], self.threads)
        search = Search(self.session, number, space, bench, progress)
        try:
            search.run(self._first(number, space, table, key))
            default = space.place[tuple(self.tunable.default(shape)[name] for name in space.names)]
            outcome = _outcome(key, search, default)
        except UntunableError as error:
            outcome = Outcome(key, None, error.message)
        if outcome.winner is not None:
            try:
                keep(outcome.winner, self.store)
            except CannotRunError as error:  # the search has taken long, and the folder has what it found
                self._unkept = error.message
        progress.outcome(told(outcome), outcome.winner is not None)
        return outcome

    def _space(self, shape: KernelShape, record: ShapeRecord) -> Space:
        """What is worth a launch; of a resumed search what was so when it began."""
        space = self.tunable.space(shape, self.threads)
        if record.start is None:
            return space if self.narrow is None else self.narrow(self.tunable, shape, space)
        if record.start.left is None:
            return space
        left = [dict(zip(space.names, values, strict=False)) for values in record.start.left]
        return Space(space.names, tuple(space.configurations[place_of(space, values)] for values in left))

    def _first(self, number: int, space: Space, table: TunedTable, key: TunedKey) -> tuple[int, ...]:
        """Places to begin with; written down, because a store that has other winners since would make another search of
        a resumed one."""
        record = self.session.records[number]
        if record.start is None:
            ranked = range(min(NEIGHBOURS, len(space))) if self.narrow is not None else ()
            first = dict.fromkeys([*_likely(self.tunable, self.shapes[number], space, table, key), *ranked])
            left = [list(values) for values in space.configurations] if self.narrow is not None else None
            self.session.add_start(number, Start([space.as_dict(place) for place in first], left))
            return tuple(first)
        return tuple(place_of(space, configuration) for configuration in record.start.first)


def told(outcome: Outcome) -> str:
    """An outcome in words."""
    winner = outcome.winner
    if winner is None:
        return f"no winner: {outcome.failure}"
    if winner.verdict == "confirmed":
        return f"the default is confirmed: {spelled(winner.configuration)}, {format_seconds(winner.time_s)}"
    gain = f"{winner.gain - 1:+.1%} (95 %: {winner.gain_low - 1:+.1%} to {winner.gain_high - 1:+.1%})"
    was = f"{format_seconds(winner.default_time_s)} → {format_seconds(winner.time_s)}"
    return f"{spelled(winner.configuration)} beats the default: {was}, {gain}"


def _likely(tunable: Tunable, shape: KernelShape, space: Space, table: TunedTable, key: TunedKey) -> tuple[int, ...]:
    """The default, then winners of the likest shapes."""
    likely = [tunable.default(shape), *(w.configuration for w in table.neighbours(key)[:NEIGHBOURS])]
    places = [space.place.get(tuple(c[name] for name in space.names)) for c in likely if set(space.names) <= set(c)]
    if places[0] is None:
        raise UntunableError(f"the default configuration is not in the space of {tunable.name} for this shape")
    return tuple(dict.fromkeys(place for place in places if place is not None))


def _outcome(key: TunedKey, search: Search, default: int) -> Outcome:
    trials = search.record.trials
    statuses: dict[str, int] = dict(Counter(trial.status for trial in trials))
    times = search.times()
    if default not in times:
        trial = search.record.trials[0] if trials else None
        why = f"{trial.status}: {trial.error}" if trial else "no time to try it"
        return Outcome(key, None, f"the default configuration failed ({why})", statuses)
    chosen, rounds = search.rounds(finalists(times, default))
    choice = choose(rounds, chosen)
    if choice is None:
        return Outcome(key, None, "the default could not be measured again", statuses)
    return Outcome(key, _winner(key, choice, chosen, len(rounds), len(trials)), None, statuses)


def _winner(key: TunedKey, choice: Choice, chosen: list[dict[str, Any]], rounds: int, trials: int) -> Winner:
    gains = [1.0, 1.0, 1.0] if choice.is_default else [math.exp(-x) for x in (choice.mean, choice.high, choice.low)]
    return Winner(
        key=key,
        configuration=chosen[choice.place],
        default=chosen[0],
        verdict="confirmed" if choice.is_default else "improved",
        time_s=max(choice.time_s, _TRUST_S),
        default_time_s=max(choice.default_time_s, _TRUST_S),
        gain=gains[0],
        gain_low=gains[1],
        gain_high=gains[2],
        rounds=rounds,
        trials=trials,
        tied_with=[chosen[at] for at in choice.tied],
        rule=RULE,
        tuned_at=now(),
        kvbench=__version__,
    )
