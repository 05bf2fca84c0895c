"""What a person sees while a sweep runs: a live bar on a terminal, one plain line per sample elsewhere."""

from __future__ import annotations

import time
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from kvbench.console import is_animated, plain, say, talk
from kvbench.units import format_duration

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


class SweepProgress:
    """Counts samples done; remaining time is the mean of those done in this session times those left."""

    def __init__(self, total: int, done_before: int = 0) -> None:
        self._total = total
        self._done = done_before
        self._measured = 0
        self._start = time.monotonic()
        self._label = ""
        self._progress: Progress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        if is_animated():
            self._progress, self._task = _bar(self._total, self._done)
            self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._progress is not None:
            self._progress.stop()

    def started(self, label: str) -> None:
        self._label = label
        self._describe(label)

    def within(self, share: float) -> None:
        """How far the case in progress is, 0…1."""
        self._describe(f"{self._label} {share:.0%}")

    def finished(self, label: str, status: str, headline: str) -> None:
        self._done += 1
        self._measured += 1
        elapsed = time.monotonic() - self._start
        left = elapsed / self._measured * (self._total - self._done)
        style = None if status == "ok" else "yellow"
        line = f"[{self._done}/{self._total}] {label}  {status}  {headline}"
        say(f"{line}  (elapsed {format_duration(elapsed)}, left {format_duration(left)})", style=style)
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, completed=self._done)

    def _describe(self, text: str) -> None:
        if self._progress is not None and self._task is not None:
            from rich.markup import escape

            self._progress.update(self._task, description=escape(plain(text)))


def _bar(total: int, done: int) -> tuple[Any, Any]:
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (MofNCompleteColumn(), BarColumn(bar_width=24), TimeElapsedColumn(), TimeRemainingColumn())
    progress = Progress(
        *columns,
        TextColumn("{task.description}"),
        console=talk(),
        transient=True,
        # Our console writes to the stderr of the moment: redirected to the console, it would call itself for ever.
        redirect_stdout=False,
        redirect_stderr=False,
    )
    return progress, progress.add_task("starting", total=total, completed=done)
