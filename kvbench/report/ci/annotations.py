"""GitHub workflow commands: one annotation for every case that somebody should look at.

Escaping is that of GitHub's own toolkit (actions/toolkit, packages/core/src/command.ts): `%`, CR and LF in the message,
`:` and `,` as well in a property.
"""

from __future__ import annotations

from kvbench.analysis.gate.types import CaseVerdict, SuiteVerdict, Verdict
from kvbench.report.ci import context as words
from kvbench.report.ci.context import GateContext
from kvbench.tabulate import one_line

MOST = 10
"""GitHub shows so many annotations of one level of a step and drops the rest without a word."""


def annotation_lines(verdict: SuiteVerdict, context: GateContext) -> list[str]:
    """Lines for stdout or stderr of a step: errors, warnings, notices; beyond the tenth of a level, how many more."""
    levels: dict[str, list[str]] = {"error": [], "warning": [], "notice": []}
    for case in words.ordered(verdict):
        level = _level(case)
        if level:
            title = f"{case.verdict} {words.label(case)}"
            levels[level].append(command(level, title, words.sentence(case)))
    uniform = verdict.uniform
    if uniform is not None and uniform.verdict is Verdict.FAIL:
        told = next(line for line in words.explanations(verdict) if line.startswith("all "))
        level = "warning" if verdict.advisory else "error"
        levels[level].insert(0, command(level, "FAIL suite-wide", told))
    lines = [line for level, found in levels.items() for line in _capped(level, found)]
    return lines or [command("notice", f"kvbench gate {context.suite}", words.headline(verdict))]


def command(level: str, title: str, message: str) -> str:
    """`::error title=…::…`, escaped."""
    return f"::{level} title={_property(one_line(title))}::{_data(one_line(message))}"


def _level(case: CaseVerdict) -> str:
    if case.advisory:
        return "warning"
    found = {Verdict.FAIL: "error", Verdict.INVALID: "error", Verdict.INCONCLUSIVE: "warning"}
    return found.get(case.verdict, "notice" if case.verdict is Verdict.IMPROVED else "")


def _capped(level: str, lines: list[str]) -> list[str]:
    if len(lines) <= MOST:
        return lines
    rest = len(lines) - MOST + 1
    return [*lines[: MOST - 1], command(level, "kvbench gate", f"and {rest} more: see the summary of the job")]


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
