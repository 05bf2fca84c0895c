"""What a table cannot say in a cell: warnings and errors in words, each said once with the cases it is about."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kvbench.analysis.consistency import identical_latency
from kvbench.analysis.summary import CaseSummary, is_plausible
from kvbench.measure.warnings import text as warning_text
from kvbench.store.case_columns import METRICS

_SHOWN = 3


def case_notes(summaries: Iterable[CaseSummary], labels: Mapping[str, str]) -> list[str]:
    """Errors, then warnings, of all samples. `labels`: case id → the case in words."""
    warnings: dict[str, dict[str, set[str]]] = {}
    errors: dict[str, set[str]] = {}
    for summary in summaries:
        label = labels[summary.case_id]
        for name, numbers in summary.warnings:
            warnings.setdefault(name, {}).setdefault(warning_text(name, numbers), set()).add(label)
        for error in summary.errors:
            errors.setdefault(error, set()).add(label)
    notes = [_note("error", text, cases, len(labels)) for text, cases in errors.items()]
    for texts in warnings.values():
        notes += _condensed(texts, len(labels))
    return notes


def consistency_notes(rows: Iterable[Mapping[str, Any]], labels: Mapping[str, str]) -> list[str]:
    """What only a look across the cases shows (M37)."""
    return [
        _note("warning", warning_text(w["name"], w["numbers"]), {labels[c] for c, _ in w["samples"]}, len(labels))
        for w in identical_latency(rows)
    ]


def value_notes(rows: Iterable[Mapping[str, Any]], labels: Mapping[str, str]) -> list[str]:
    """Stored numbers that nothing can have measured: tables and charts are without them."""
    found: dict[str, set[str]] = {}
    for row in rows:
        for name in METRICS:
            value = row.get(name)
            if value is not None and not isinstance(value, bool) and not is_plausible(value):
                found.setdefault(name, set()).add(labels[row["case_id"]])
    if not found:
        return []
    names = ", ".join(sorted(found)[:_SHOWN]) + (f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else "")
    text = f"left out, because it is no number or of a size that nothing has: {names}"
    return [_note("warning", text, set().union(*found.values()), len(labels))]


def import_notes(plan: Mapping[str, Any]) -> list[str]:
    """What changed the requests on their way in (rows dropped, lengths clipped, scaling), once for each wording."""
    cases: dict[str, int] = {}
    texts: dict[str, set[str]] = {}
    for case in plan["cases"]:
        digest = case.get("workload_digest")
        cases[digest] = cases.get(digest, 0) + 1
        told = plan.get("workloads", {}).get(digest, {}).get("report", {})
        for note in told.get("notes", ()):
            texts.setdefault(f"{told.get('source', 'workload')}: {note}", set()).add(digest)
    served = sum(count for digest, count in cases.items() if digest is not None)
    return [f"note: {text}{_part(sum(cases[d] for d in digests), served)}" for text, digests in texts.items()]


def _part(count: int, total: int) -> str:
    return "" if count == total else f" ({count} of {total} engine cases)"


def _condensed(texts: Mapping[str, set[str]], total: int) -> list[str]:
    """Warnings of one kind; beyond a few wordings only the most frequent ones, and how many more."""
    order = sorted(texts, key=lambda text: -len(texts[text]))
    notes = [_note("warning", text, texts[text], total) for text in order[:_SHOWN]]
    if len(order) > _SHOWN:
        notes[-1] += f"; {len(order) - _SHOWN} more like it (--format json has all)"
    return notes


def _note(kind: str, text: str, cases: set[str], total: int) -> str:
    if len(cases) == total:
        return f"{kind}: {text}" + (" (every case)" if total > 1 else "")
    shown = "; ".join(sorted(cases)[:_SHOWN])
    return f"{kind}: {text} ({shown})" if len(cases) <= _SHOWN else f"{kind}: {text} ({len(cases)} cases: {shown}; …)"
