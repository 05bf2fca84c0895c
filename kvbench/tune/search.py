"""The search of one shape in child processes, and its finals: every answer is written before the next question."""

from __future__ import annotations

import random
import statistics
from typing import TYPE_CHECKING, Any

from kvbench.errors import DataError
from kvbench.tune.child import Bench, Child
from kvbench.tune.progress import TuneProgress, spelled
from kvbench.tune.session import Session
from kvbench.tune.strategy import make_strategy
from kvbench.tune.trial import Trial, try_configuration

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvbench.tune.space import Space

FINAL_MIN_S = 0.05
FINAL_CALLS = 5


class Search:
    """The search of one shape, and its finals."""

    def __init__(self, session: Session, number: int, space: Space, bench: Bench, progress: TuneProgress) -> None:
        self.space, self.record, self.plan = space, session.records[number], session.plan
        self._session, self._number, self._bench, self._progress = session, number, bench, progress
        self._known = {place_of(space, trial.configuration): trial for trial in self.record.trials}

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


def place_of(space: Space, configuration: Mapping[str, Any]) -> int:
    """Of a configuration that was recorded."""
    try:
        return space.place[tuple(configuration[name] for name in space.names)]
    except KeyError:
        raise DataError(
            f"what was recorded ({spelled(configuration)}) is not in this space", hint="start a new tuning"
        ) from None


def _time(trial: Trial) -> float:
    assert trial.time_s is not None
    return trial.time_s
