"""A termination signal ends a run as Ctrl-C does: tidily, with what is finished kept."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def termination_is_an_interrupt() -> Iterator[None]:
    """SIGTERM (a CI job that is cancelled) keeps what is finished, just as Ctrl-C does. Only in the main thread."""

    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    try:
        before = signal.signal(signal.SIGTERM, interrupt)
    except ValueError:  # a notebook's thread: signals are its owner's business
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
