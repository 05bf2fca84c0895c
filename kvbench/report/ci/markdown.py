"""A verdict as Markdown: a job summary or a comment. Text from outside is escaped here."""

from __future__ import annotations

from kvbench.analysis.gate.types import CaseVerdict, SuiteVerdict, Verdict
from kvbench.report.ci import context as words
from kvbench.report.ci.context import GateContext
from kvbench.tabulate import escape_markdown, markdown, value_cell

HEAD = ("verdict", "case", "metric", "baseline", "candidate", "effect", "95 % interval", "MDE", "p (Holm)", "why")
RIGHT = frozenset({3, 4, 5, 6, 7, 8})
_OPEN = (Verdict.INVALID, Verdict.FAIL, Verdict.INCONCLUSIVE, Verdict.IMPROVED)


def markdown_summary(verdict: SuiteVerdict, context: GateContext) -> str:
    """The whole verdict: headline, what needs attention, the passes folded away, what differs between the sides."""
    cases = words.ordered(verdict)
    first = [case for case in cases if case.verdict in _OPEN]
    passed = [case for case in cases if case.verdict is Verdict.PASS]
    parts = [f"## {_text(f'kvbench gate {context.suite}')}: {_text(words.headline(verdict))}"]
    parts.append(f"baseline {_runs(context.baselines)}, candidate {_runs(context.candidates)}")
    parts += [_table(first)] if first else []
    if passed:
        parts.append(f"<details><summary>{len(passed)} within the margin</summary>\n\n{_table(passed)}\n\n</details>")
    parts += [_text(line) for line in words.explanations(verdict)]
    if context.notes:
        parts.append("\n".join(f"- {_text(note)}" for note in context.notes))
    shown = [d for d in context.differences if d.role == "treatment"]
    if shown:
        rows = [[d.field, value_cell(d.left), value_cell(d.right)] for d in shown]
        parts.append("The sides differ in\n\n" + markdown(["field", "baseline", "candidate"], rows))
    return "\n\n".join(parts) + "\n"


def row(case: CaseVerdict) -> list[str]:
    """The cells of a case under `HEAD`, for a person."""
    before, after = words.values(case)
    p = "–" if case.p_worse_adjusted != case.p_worse_adjusted else f"{case.p_worse_adjusted:.2g}"
    name = f"{case.verdict} (advice)" if case.advisory else str(case.verdict)
    shown = [name, words.label(case), words.metric(case), before, after, words.percent(case.effect)]
    return [*shown, words.interval(case), words.percent(case.mde), p, words.reasons(case)]


def _table(cases: list[CaseVerdict]) -> str:
    return markdown(HEAD, [row(case) for case in cases], right=RIGHT)


def _runs(names: object) -> str:
    return ", ".join(_text(str(name)) for name in names) if isinstance(names, list | tuple) else _text(str(names))


def _text(text: str) -> str:
    return escape_markdown(text)
