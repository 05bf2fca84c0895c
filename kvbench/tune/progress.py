"""What a person sees while a tuning runs: a live line on a terminal, one plain line per trial elsewhere."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Self

from kvbench.console import is_animated, plain, say, talk
from kvbench.units import format_duration, format_seconds

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvbench.tune.trial import Trial


class TuneProgress:
    """On a terminal only new bests, failures and shapes get lines of their own."""

    def __init__(self) -> None:
        self._start = time.monotonic()
        self._status: Any = None
        self._label = ""

    def __enter__(self) -> Self:
        if is_animated():
            self._status = talk().status("tuning")
            self._status.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._status is not None:
            self._status.stop()

    def shape(self, label: str, configurations: int, kept: int) -> None:
        self._label = label
        kept_text = f", {kept} trials are there already and are kept" if kept else ""
        say(f"{label}: {configurations} configurations{kept_text}")

    def note(self, text: str) -> None:
        say(text, style="yellow")

    def trial(self, number: int, limit: str, trial: Trial, best: Trial | None) -> None:
        """`best` of this shape so far, this trial included."""
        best_text = "none yet" if best is None else f"{format_seconds(best.time_s)} ({spelled(best.configuration)})"
        result = format_seconds(trial.time_s) if trial.is_timed else f"{trial.status}: {trial.error}"
        result += ", dropped" if trial.is_dropped else ""
        line = f"[{number}/{limit}] {spelled(trial.configuration)}  {result}  best {best_text}"
        if self._status is None or best is trial or not trial.is_timed:
            say(f"{line}  ({self._elapsed()})", style=None if trial.is_timed else "yellow")
        self._describe(line)

    def round(self, number: int, rounds: int, finalists: int) -> None:
        line = f"re-measured {finalists} finalists in process {number} of {rounds}"
        if self._status is None:
            say(f"{line}  ({self._elapsed()})")
        self._describe(line)

    def outcome(self, text: str, is_good: bool) -> None:
        say(f"{self._label}: {text}", style=None if is_good else "yellow")

    def _elapsed(self) -> str:
        return f"elapsed {format_duration(time.monotonic() - self._start)}"

    def _describe(self, text: str) -> None:
        if self._status is not None:
            from rich.markup import escape

            self._status.update(escape(plain(text)))


def spelled(configuration: Mapping[str, Any]) -> str:
    """`split 256, tile 64, threads 0`."""
    return ", ".join(f"{name} {value}" for name, value in configuration.items())
