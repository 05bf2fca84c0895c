"""What a run says in a few sentences, and what a reader must know before any number."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

from kvbench.analysis.effects import effect
from kvbench.report.build import CaseLine
from kvbench.report.cells import metric_cell, metric_label
from kvbench.report.ci.context import percent
from kvbench.report.html.axis_effects import level_effects
from kvbench.report.html.contents import Contents, Kind, cell
from kvbench.report.text import PREDICTED
from kvbench.store.case_columns import METRICS

_NAMED = 3


class Badge(NamedTuple):
    """A label that stands above everything else."""

    tone: Literal["virtual", "cpu", "device", "trouble"]
    text: str


def badges(contents: Contents) -> list[Badge]:
    """Predicted or measured, on what, and whether all of it."""
    rows = contents.run.case_rows
    found = [Badge("virtual", PREDICTED)] if contents.is_virtual else list(_measured(contents))
    planned = len(contents.run.plan["cases"]) * int(contents.run.plan.get("repetitions") or 1)
    if len(rows) < planned:
        found.append(Badge("trouble", f"Unfinished: {len(rows)} of {planned} samples are here"))
    failed = sum(row.get("status") != "ok" for row in rows)
    if failed:
        found.append(Badge("trouble", f"{failed} of {len(rows)} samples did not end ok; they are in no figure"))
    if contents.run.problems:
        found.append(Badge("trouble", f"{len(contents.run.problems)} stored samples are damaged and left out"))
    return found


def _measured(contents: Contents) -> Iterator[Badge]:
    rows = contents.run.case_rows
    names = sorted({str(row["device_name"]) for row in rows if row.get("device_name")})
    if {row.get("device") for row in rows} == {"cpu"}:
        text = "shows what a setting does on this machine and does not predict a GPU"
        yield Badge("cpu", f"Measured on a CPU{f' ({names[0]})' if len(names) == 1 else ''}: {text}")
    elif names:
        yield Badge("device", f"Measured on {', '.join(names)}")


def what_ran(contents: Contents) -> str:
    """How much of what was run."""
    counts = [f"{len(kind.table.lines)} {name} case{'s'[: len(kind.table.lines) != 1]}"
              for name, kind in contents.kinds.items()]  # fmt: skip
    samples = sorted({line.samples for kind in contents.kinds.values() for line in kind.table.lines})
    each = f"{samples[0]}" if len(samples) == 1 else f"{samples[0]} to {samples[-1]}"
    unit = "sample" if samples == [1] else "samples"
    return f"{' and '.join(counts)}, {each} {unit} of each."


def answers(contents: Contents) -> list[str]:
    """The answer: the best case of each kind and what it is told apart from, then what mattered most."""
    found = [told for kind in contents.kinds.values() for told in _answers(contents, kind)]
    compared = any(len(kind.by_primary()) > 1 for kind in contents.kinds.values())
    if compared and not contents.is_virtual and not _has_samples(contents):
        found.append("One sample of each case: small differences may be chance.")
    return found or ["No sample ended ok: there is nothing to compare."]


def _has_samples(contents: Contents) -> bool:
    return any(line.ok_samples > 1 for kind in contents.kinds.values() for line in kind.ran)


def _answers(contents: Contents, kind: Kind) -> Iterator[str]:
    ranked = kind.by_primary()
    if not ranked:
        return
    best, word = ranked[0], "Most" if kind.primary.better == "higher" else "Shortest"
    label = metric_label(kind.primary)
    if len(kind.table.lines) == 1:
        yield f"{label}: {cell(best, kind.primary.name)}."
        return
    yield f"{word} {label}: {kind.label(best)} with {cell(best, kind.primary.name)}{_lead(contents, kind, ranked)}"
    if kind.table.kind == "engine":
        yield from _latencies(kind, best)
    if len(kind.factors) > 1:
        yield from _strongest(contents, kind)


def _lead(contents: Contents, kind: Kind, ranked: Sequence[CaseLine]) -> str:
    """What the best case is ahead of, as far as the samples can tell."""
    best, name = ranked[0], kind.primary.name
    if len(ranked) == 1:
        return "; no other case ended ok."
    unclear, reached = [], True
    for other in ranked[1:]:
        found = effect([(contents.samples(other.case_id, name), contents.samples(best.case_id, name))])
        if found is None or math.isnan(found.low):
            reached = False
        elif not found.is_clear:
            unclear.append(kind.label(other))
    last = f"{kind.label(ranked[-1])}: {metric_cell(ranked[-1].value(name), kind.primary)}"
    if contents.is_virtual or not reached:
        following = f"; next {kind.label(ranked[1])} with {cell(ranked[1], name)}"
        return f"{following}; last {last}." if len(ranked) > 2 else f"{following}."
    if not unclear:
        return f", ahead of every other case beyond the noise of the samples; last {last}."
    more = f" and {len(unclear) - _NAMED} more" if len(unclear) > _NAMED else ""
    return f"; these samples do not tell it from {'; '.join(unclear[:_NAMED])}{more}; last {last}."


def _latencies(kind: Kind, best: CaseLine) -> Iterator[str]:
    parts = []
    for name, label in (("ttft_p50_s", "TTFT p50"), ("tpot_p50_s", "TPOT p50")):
        known = [(value, n, line) for n, line in enumerate(kind.ran) if (value := line.value(name)) is not None]
        if known:
            line = min(known, key=lambda one: one[:2])[2]
            same = " (the same case)" if line is best else ""
            parts.append(f"{label} {cell(line, name)} with {kind.label(line)}{same}")
    if parts:
        yield f"Lowest {'; lowest '.join(parts)}."


def _strongest(contents: Contents, kind: Kind) -> Iterator[str]:
    name = kind.primary.name
    known = [one for one in level_effects(contents, kind) if name in one.effects]
    clear = [one for one in known if one.effects[name].is_clear]
    has_intervals = any(not math.isnan(one.effects[name].low) for one in known)
    if not known:
        return
    if has_intervals and not clear and not contents.is_virtual:
        yield f"No axis changes {metric_label(METRICS[name])} beyond the noise of the samples."
        return
    top = max(clear or known, key=lambda one: abs(math.log1p(one.effects[name].change)))
    found = top.effects[name]
    if percent(found.change) in ("+0.0 %", "-0.0 %"):
        yield f"No axis changes {metric_label(METRICS[name])}."
        return
    interval = f" (95 % interval {percent(found.low)} to {percent(found.high)})" if has_intervals else ""
    yield (
        f"Largest effect of one axis: {top.label} instead of {top.factor.levels[0]} changes "
        f"{metric_label(METRICS[name])} by {percent(found.change)}{'' if contents.is_virtual else interval}."
    )
