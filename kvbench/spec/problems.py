"""What is wrong with a suite: collected, then shown all at once."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kvbench.console import plain
from kvbench.errors import UsageError

SHOWN = 50
"""More problems than this are counted, not listed."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One fault: the dotted key where it is, and what is wrong with what was expected."""

    key: str
    text: str
    at: str = ""
    """Where to look for its line, when that is more exact than `key`."""
    place: str = ""
    """`file:line`, once it is known."""

    def __str__(self) -> str:
        return plain(": ".join(part for part in (self.place, self.key, self.text) if part))


class SuiteError(UsageError):
    """A suite or an override that cannot be used; `problems` has every fault found."""

    def __init__(self, problems: Sequence[Problem], *, what: str, hint: str | None = None) -> None:
        self.problems = tuple(problems)
        super().__init__(_message(self.problems, what), hint=hint)


def _message(problems: Sequence[Problem], what: str) -> str:
    if len(problems) == 1:
        return str(problems[0])
    lines = [f"{plain(what)} has {len(problems)} errors", *(f"  {problem}" for problem in problems[:SHOWN])]
    if len(problems) > SHOWN:
        lines.append(f"  … and {len(problems) - SHOWN} more")
    return "\n".join(lines)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`; did you mean "block_size"?`, or nothing when nothing is close."""
    choices = {name.lower(): name for name in known}
    close = difflib.get_close_matches(word.lower()[:80], choices, n=1, cutoff=0.6)
    return f'; did you mean "{choices[close[0]]}"?' if close else ""
