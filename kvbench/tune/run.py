"""The story of a tuning: for every shape search, measure the best again, choose, keep. Torch-free.

Trials run in child processes (`tune/worker.py`); here is who is tried next, and what is made of the answers.
"""

from __future__ import annotations

import math
import random
import statistics
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvbench import __version__
from kvbench.errors import CannotRunError, DataError, ExitCode, KvbenchError
from kvbench.store.parts import now
from kvbench.tune.child import Bench, Child
from kvbench.tune.finals import RULE, Choice, choose, finalists
from kvbench.tune.progress import TuneProgress, spelled
from kvbench.tune.session import WINNERS, Session, ShapeRecord
from kvbench.tune.strategy import make_strategy
from kvbench.tune.trial import Trial, try_configuration
from kvbench.tuned.files import keep, read_store, write_document
from kvbench.tuned.key import TunedKey, key_of
from kvbench.tuned.winner import Winner
from kvbench.units import format_seconds

if TYPE_CHECKING:
    from kvbench.tune.narrowing import Narrow
    from kvbench.tune.space import Space
    from kvbench.tune.tunable import Tunable
    from kvbench.tuned.table import TunedTable
    from kvbench_kernels.specs import KernelShape

NEIGHBOURS = 3
"""Winners of the likest shapes that a search begins with, after the default"""
FINAL_MIN_S = 0.05
FINAL_CALLS = 5
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
        """One outcome per shape. Raises `TuneInterruptedError` after Ctrl-C, `CannotRunError` when winners were found
        and the store could not take them."""
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
        space = self.tunable.space(shape, self.threads)
        if self.narrow is not None:
            space = self.narrow(self.tunable, shape, space)
        progress.shape(key.label, len(space), len(record.trials))
        bench = Bench(self.reference, asdict(shape), self.tunable.device, plan["seed"], self.threads)
        search = _Search(self, number, space, bench, record, progress)
        try:
            ranked = range(min(NEIGHBOURS, len(space))) if self.narrow is not None else ()
            search.run(tuple(dict.fromkeys([*_first(self.tunable, shape, space, table, key), *ranked])))
            default = space.place[tuple(self.tunable.default(shape)[name] for name in space.names)]
            outcome = _outcome(key, search, default)
        except CannotRunError as error:
            outcome = Outcome(key, None, error.message)
        if outcome.winner is not None:
            try:
                keep(outcome.winner, self.store)
            except CannotRunError as error:  # the search has taken long, and the folder has what it found
                self._unkept = error.message
        progress.outcome(told(outcome), outcome.winner is not None)
        return outcome


class _Search:
    """The search of one shape, and its finals."""

    def __init__(
        self, tuning: Tuning, number: int, space: Space, bench: Bench, record: ShapeRecord, progress: TuneProgress
    ) -> None:
        self.space, self.record, self.plan = space, record, tuning.session.plan
        self._session, self._number, self._bench, self._progress = tuning.session, number, bench, progress
        self._known = {_place(space, trial): trial for trial in record.trials}

    def run(self, first: tuple[int, ...]) -> None:
        """Until the budget is spent or the space is; what was tried before is not tried again."""
        strategy = make_strategy(self.plan["strategy"], self.space, self.plan["seed"], first)
        tried, best = 0, None
        limit = min(self.plan["trials"] or len(self.space), len(self.space))
        with Child(self._bench) as child:
            while tried < limit and not self._is_out_of_time() and (place := strategy.ask()) is not None:
                trial = self._known.get(place)
                is_new = trial is None
                if trial is None:
                    trial = self._tried(child, place, best)
                tried += 1
                if trial.is_timed and (best is None or _time(trial) < _time(best)):
                    best = trial
                strategy.tell(place, trial.time_s)
                if is_new:
                    self._progress.trial(tried, str(limit), trial, best)

    def times(self) -> dict[int, float]:
        """Place → seconds of everything that was right."""
        return {place: _time(trial) for place, trial in self._known.items() if trial.is_timed}

    def rounds(self, places: list[int]) -> tuple[list[dict[str, Any]], list[list[float | None]]]:
        """Finalists and their times in every process; a resumed tuning goes on with the finalists that it has."""
        if not self.record.rounds:
            self.record.finalists = [dict(self.space.as_dict(place)) for place in places]
        chosen = self.record.finalists
        for number in range(len(self.record.rounds), self.plan["rounds"]):
            self._session.add_round(self._number, chosen, self._round(chosen, number))
            self._progress.round(number + 1, self.plan["rounds"], len(chosen))
        return chosen, self.record.rounds

    def _tried(self, child: Child, place: int, best: Trial | None) -> Trial:
        best_s = None if best is None else best.time_s
        trial = try_configuration(child, self.space.as_dict(place), best_s, self.plan["timeout_s"])
        self._known[place] = trial
        self._session.add_trial(self._number, trial, child.bytes_per_call)
        return trial

    def _round(self, chosen: list[dict[str, Any]], number: int) -> list[float | None]:
        """One fresh process; every finalist is checked, then timed in two passes of shuffled order."""
        order = list(range(len(chosen)))
        shuffle = random.Random(f"{self.plan['seed']}/{self._number}/{number}").shuffle
        times: list[list[float]] = [[] for _ in chosen]
        failed: set[int] = set()
        with Child(self._bench) as child:
            for turn in ("check", "time", "time"):
                shuffle(order)
                for at in (at for at in order if at not in failed):
                    request: dict[str, Any] = {"op": turn, "configuration": chosen[at]}
                    if turn == "time":
                        request |= {"calls": FINAL_CALLS, "min_s": FINAL_MIN_S, "max_s": 2.0}
                    answer = child.ask(request, self.plan["timeout_s"])
                    if answer["status"] != "correct":
                        failed.add(at)
                    times[at] += answer.get("times", [])
        return [None if at in failed else statistics.median(found) for at, found in enumerate(times)]

    def _is_out_of_time(self) -> bool:
        seconds = self.plan["seconds"]
        return seconds is not None and self.record.searched_s >= seconds / len(self.plan["shapes"])


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


def _first(tunable: Tunable, shape: KernelShape, space: Space, table: TunedTable, key: TunedKey) -> tuple[int, ...]:
    """The default, then winners of the likest shapes."""
    likely = [tunable.default(shape), *(w.configuration for w in table.neighbours(key)[:NEIGHBOURS])]
    places = [space.place.get(tuple(c[name] for name in space.names)) for c in likely if set(space.names) <= set(c)]
    if places[0] is None:
        raise CannotRunError(f"the default configuration is not in the space of {tunable.name} for this shape")
    return tuple(dict.fromkeys(place for place in places if place is not None))


def _outcome(key: TunedKey, search: _Search, default: int) -> Outcome:
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


def _time(trial: Trial) -> float:
    assert trial.time_s is not None
    return trial.time_s


def _place(space: Space, trial: Trial) -> int:
    try:
        return space.place[tuple(trial.configuration[name] for name in space.names)]
    except KeyError:
        raise DataError(
            f"a recorded trial ({spelled(trial.configuration)}) is not in this space", hint="start a new tuning"
        ) from None
