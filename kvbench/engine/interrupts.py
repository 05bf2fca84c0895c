"""Ctrl-C between two steps instead of in the middle of one, so that the books always add up."""

from __future__ import annotations

import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType


@contextmanager
def deferred_interrupts() -> Iterator[Callable[[], None]]:
    """Yields a function that raises `KeyboardInterrupt` if one has come since; call it where stopping is safe.

    A second interrupt is raised on the spot, for when that place is never reached. Outside the main thread, where
    Python delivers no signals, nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return
    pending = False

    def note(signum: int, frame: FrameType | None) -> None:
        nonlocal pending
        if pending:
            raise KeyboardInterrupt
        pending = True

    def raise_if_pending() -> None:
        if pending:
            raise KeyboardInterrupt

    before = signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler:
        yield lambda: None
        return
    signal.signal(signal.SIGINT, note)
    try:
        yield raise_if_pending
    finally:
        signal.signal(signal.SIGINT, before)
