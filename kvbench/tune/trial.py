"""One configuration tried: compiled, checked against the reference, and only then timed. Torch-free."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from kvbench.store.parts import now
from kvbench.tune.racing import race

if TYPE_CHECKING:
    from kvbench.tune.child import Child
    from kvbench.tune.tunable import Configuration

Status = Literal["correct", "timeout", "compile", "runtime", "correctness", "constraints"]
STATUSES: tuple[Status, ...] = ("correct", "timeout", "compile", "runtime", "correctness", "constraints")
"""The `invalidity` values of the T4 format"""
MAX_RUNG_S = 2.0
"""A rung of a slow kernel ends here, with the calls that it has"""


@dataclass(frozen=True, slots=True)
class Trial:
    """What became of a configuration. `time_s` is the median of `times`; None unless `status` is correct."""

    configuration: dict[str, Any]
    status: Status
    error: str | None = None
    time_s: float | None = None
    times: list[float] = field(default_factory=list)
    is_dropped: bool = False
    """The race was left early: slower than the best by more than the rung allows"""
    error_rel: float | None = None
    """Worst row against the reference"""
    compile_s: float | None = None
    check_s: float | None = None
    trial_s: float = 0.0
    """All that the trial took"""
    finished_at: str = ""

    @property
    def is_timed(self) -> bool:
        return self.time_s is not None


def try_configuration(child: Child, configuration: Configuration, best_s: float | None, timeout_s: float) -> Trial:
    """Check, then race. A failure, whatever it is, is a trial with a status. `timeout_s` is for each step."""
    start = time.monotonic()
    values = dict(configuration)
    checked = child.ask({"op": "check", "configuration": values}, timeout_s)
    numbers: dict[str, Any] = {name: checked.get(name) for name in ("error_rel", "compile_s", "check_s")}
    if checked["status"] != "correct":
        return _finished(Trial(values, checked["status"], checked.get("error"), **numbers), start)
    lost: dict[str, Any] = {}

    def more(calls: int) -> list[float] | None:
        request = {"op": "time", "configuration": values, "calls": calls, "min_s": 0.0, "max_s": MAX_RUNG_S}
        answer = child.ask(request, timeout_s)
        if answer["status"] != "correct":
            lost.update(answer)
            return None
        return list(answer["times"])

    raced = race(more, best_s)
    if raced is None:
        return _finished(Trial(values, lost["status"], lost.get("error"), **numbers), start)
    found = Trial(values, "correct", time_s=raced.median, times=raced.times, is_dropped=raced.is_dropped, **numbers)
    return _finished(found, start)


def _finished(trial: Trial, start: float) -> Trial:
    return replace(trial, trial_s=time.monotonic() - start, finished_at=now())
