"""The one rich console for talk (stderr); data goes to stdout and never through here.

Decides once what the surroundings can show: a real terminal may animate; a CI log or a pipe
gets one plain line per event, coloured only when `FORCE_COLOR` asks for it.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, TextIO, cast

if TYPE_CHECKING:
    from rich.console import Console


def is_animated() -> bool:
    """True where moving the cursor is welcome: a terminal, and no `CI` in the environment."""
    return sys.stderr.isatty() and not os.environ.get("CI") and os.environ.get("TERM") != "dumb"


@cache
def talk() -> Console:
    """The console on stderr. `NO_COLOR` and `FORCE_COLOR` are honoured; neither moves the cursor in CI."""
    from rich.console import Console

    return Console(file=cast("TextIO", _Stderr()), highlight=False, soft_wrap=True, force_interactive=is_animated())


class _Stderr(io.TextIOBase):
    """The stderr of the moment. A listener that went away, or a log on a disk that is full, costs the talk and never
    the sweep that talks."""

    def write(self, text: str) -> int:
        self._try(lambda: sys.stderr.write(text))
        return len(text)

    def flush(self) -> None:
        self._try(lambda: sys.stderr.flush())

    def isatty(self) -> bool:
        return sys.stderr.isatty()

    def fileno(self) -> int:
        return sys.stderr.fileno()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return sys.stderr.encoding

    def _try(self, act: Callable[[], object]) -> None:
        try:
            act()
        except OSError:
            discard(sys.stderr)


def discard(stream: TextIO) -> None:
    """Send the stream nowhere from now on, with what it still holds: it would be tried once more at interpreter
    exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def say(text: str, style: str | None = None) -> None:
    """One plain line of talk; markup in `text` is shown as text (M68)."""
    talk().print(plain(text), style=style, markup=False)


def plain(text: str) -> str:
    """The text without control characters, so that a suite name cannot drive the terminal (M68)."""
    return "".join(c if c.isprintable() or c in "\n\t" else f"\\x{ord(c):02x}" for c in text)
