"""A verdict as JUnit XML, the form that every CI system shows: one test case per case and metric.

FAIL is a failure, INVALID an error. JUnit has no third answer: what is open or only advice is skipped, with its reason.
"""

from __future__ import annotations

import re
from xml.sax.saxutils import quoteattr

from kvbench.analysis.gate.types import CaseVerdict, SuiteVerdict, Verdict
from kvbench.report.ci import context as words
from kvbench.report.ci.context import GateContext
from kvbench.report.ci.data import case_record
from kvbench.tabulate import one_line

_ILLEGAL = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML 1.0 cannot hold, not even escaped."""


def junit_xml(verdict: SuiteVerdict, context: GateContext) -> str:
    """The document; every number of a case is among its properties."""
    cases = words.ordered(verdict)
    answers = [_answer(case) for case in cases]
    counts = " ".join(
        f'{name}="{sum(answer is not None and answer[0] == kind for answer in answers)}"'
        for name, kind in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped"))
    )
    name = _attribute(f"kvbench gate {context.suite}")
    lines = ['<?xml version="1.0" encoding="UTF-8"?>', "<testsuites>"]
    lines.append(f'  <testsuite name={name} tests="{len(cases)}" {counts}>')
    lines += _properties({"verdict": words.headline(verdict), **dict(_sides(context))}, "    ")
    for case, answer in zip(cases, answers, strict=True):
        lines += _case(case, answer)
    return "\n".join([*lines, "  </testsuite>", "</testsuites>", ""])


def _answer(case: CaseVerdict) -> tuple[str, str] | None:
    """(element, type) of what is not simply passed."""
    if case.verdict is Verdict.FAIL and not case.advisory:
        return "failure", "FAIL"
    if case.verdict is Verdict.INVALID:
        return "error", "INVALID"
    if case.verdict in (Verdict.INCONCLUSIVE, Verdict.FAIL):
        return "skipped", ""
    return None


def _case(case: CaseVerdict, answer: tuple[str, str] | None) -> list[str]:
    name, group = _attribute(words.label(case)), _attribute(f"kvbench.{case.metric}")
    lines = [f"    <testcase name={name} classname={group}>"]
    numbers = {key: value for key, value in case_record(case).items() if value is not None}
    lines += _properties(numbers, "      ")
    if answer is not None:
        element, kind = answer
        told = _attribute(f"{case.verdict}: {words.sentence(case)}")
        lines.append(f"      <{element} message={told}" + (f' type="{kind}"/>' if kind else "/>"))
    return [*lines, "    </testcase>"]


def _properties(values: dict[str, object], indent: str) -> list[str]:
    inner = [f"{indent}  <property name={_attribute(k)} value={_attribute(v)}/>" for k, v in values.items()]
    return [f"{indent}<properties>", *inner, f"{indent}</properties>"]


def _sides(context: GateContext) -> list[tuple[str, str]]:
    return [("baseline", ", ".join(context.baselines)), ("candidate", ", ".join(context.candidates))]


def _attribute(value: object) -> str:
    """The value in quotes, on one line, with control and other illegal characters spelled `\\x1b`."""
    text = _ILLEGAL.sub(lambda found: f"\\x{ord(found.group()):02x}", one_line(str(value)))
    return quoteattr(text)
