"""The one error family: what went wrong, the way out, and the exit code that says so to a script."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """What the process answers; `docs/cli.md` has the same table."""

    OK = 0
    NO = 1
    USAGE = 2
    PARTIAL = 3
    CANNOT = 4
    BAD_DATA = 5
    BUG = 70
    INTERRUPTED = 130


class KvbenchError(Exception):
    """An error that a user can act on: printed as `error: …` and `hint: …`, never as a traceback."""

    exit_code: ExitCode = ExitCode.USAGE

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(KvbenchError):
    """A bad option, suite, trace or checkpoint: exit 2."""


class CannotRunError(KvbenchError):
    """This machine, or this memory, cannot run what was asked: exit 4."""

    exit_code = ExitCode.CANNOT


class DataError(KvbenchError):
    """Stored data that is missing, cut short or not a number: exit 5."""

    exit_code = ExitCode.BAD_DATA


class InternalError(KvbenchError):
    """A broken promise of our own (an invariant, an impossible state): exit 70."""

    exit_code = ExitCode.BUG
