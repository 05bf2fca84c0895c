"""What each axis does: the change from its first value, other settings equal, with intervals."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from kvbench.analysis.effects import Effect, effect
from kvbench.report.cells import metric_label
from kvbench.report.ci.context import percent
from kvbench.report.html.contents import Contents, Kind
from kvbench.report.html.factors import Factor, other_settings
from kvbench.report.html.figure import Axis, Bar, Figure, Intervals, LeftOut, Range, Table
from kvbench.store.case_columns import METRICS
from kvbench.tabulate import MISSING

TITLE = "What each axis does"
METRICS_OF = {"engine": ("output_tokens_per_s", "ttft_p50_s", "tpot_p50_s"), "kernel": ("decode_s",)}
_ROWS_MOST = 24
_APART = 0.16
"""Share of the axis between two ticks, at least"""
_TICKS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 0.75, 0.9, 0.95, 0.98, 0.99, 1.0, 1.01, 1.02, 1.05, 1.1, 1.25, 1.5, 2.0,
          3.0, 5.0, 10.0, 20.0, 50.0, 100.0)  # fmt: skip


class LevelEffect(NamedTuple):
    """One level of a factor against the factor's first."""

    factor: Factor
    level: int
    effects: dict[str, Effect]
    """By metric; those that some pair of cases has"""

    @property
    def label(self) -> str:
        return f"{self.factor.label} {self.factor.levels[self.level]}"


def figure(contents: Contents, kind_name: str) -> Figure | LeftOut:
    """One plot per metric; rows are the levels of every factor but its first."""
    title = TITLE if kind_name == "engine" else f"{TITLE} to the kernel"
    kind = contents.kinds.get(kind_name)
    if kind is None:
        return LeftOut(title, f"no {kind_name} cases")
    if not kind.factors:
        return LeftOut(title, f"nothing was varied among the {kind_name} cases")
    found = list(level_effects(contents, kind))
    metrics = [name for name in METRICS_OF[kind_name] if any(name in one.effects for one in found)]
    if not metrics:
        return LeftOut(title, "no two cases that ended ok differ in one axis only")
    return Figure(
        name=f"effects-{kind_name}",
        title=title,
        caption=_caption(contents, kind, found),
        alt=_alt(found, metrics[0]),
        plots=[_plot(found, name) for name in metrics],
        tables=[_table(found, metrics)],
    )


def level_effects(contents: Contents, kind: Kind) -> Iterator[LevelEffect]:
    """Every level of every factor against the factor's first, other settings equal."""
    for factor in kind.factors:
        by_rest: dict[tuple[int, ...], dict[int, str]] = {}
        for line in kind.ran:
            rest = other_settings(line.case_id, kind.factors, [factor])
            by_rest.setdefault(rest, {})[factor.level_of[line.case_id]] = line.case_id
        for level in range(1, len(factor.levels)):
            cases = [(ids[0], ids[level]) for ids in by_rest.values() if 0 in ids and level in ids]
            effects = {}
            for name in METRICS_OF[kind.table.kind]:
                found = effect([(contents.samples(a, name), contents.samples(b, name)) for a, b in cases])
                if found is not None:
                    effects[name] = found
            if effects:
                yield LevelEffect(factor, level, effects)


def _plot(found: Sequence[LevelEffect], metric: str) -> Intervals:
    have = [one for one in found if metric in one.effects]
    kept = sorted(have, key=lambda one: -abs(math.log1p(one.effects[metric].change)))[:_ROWS_MOST]
    bars = [_bar(one, one.effects[metric]) for one in have if one in kept]
    title = metric_label(METRICS[metric])
    return Intervals(Axis(f"change of {title}", "change", True), bars, _ticks(bars), title)


def _bar(one: LevelEffect, found: Effect) -> Bar:
    known = not math.isnan(found.low)
    interval = Range(1 + found.change, 1 + found.low, 1 + found.high) if known else _point(found.change)
    text = percent(found.change)
    told = [
        ("setting", one.label),
        ("against", one.factor.levels[0]),
        ("change", text),
        ("95 % interval", _interval(found)),
        ("other settings", _over_settings(found)),
    ]
    over = Range(1 + found.change, 1 + found.smallest, 1 + found.largest)
    return Bar(one.label, interval, over, text, found.is_clear, told)


def _point(change: float) -> Range:
    return Range(1 + change, 1 + change, 1 + change)


def _ticks(bars: Sequence[Bar]) -> list[float]:
    """Ratios to mark: round changes within what is shown, far enough apart for their words; 0 % first of all."""
    ends = [end for bar in bars for end in (*bar.ratio, *bar.over_settings)]
    low, high = min([*ends, 0.98]), max([*ends, 1.02])
    apart = math.log(high / low) * _APART
    chosen = [1.0]
    for tick in sorted(_TICKS, key=lambda tick: abs(math.log(tick)), reverse=True):
        if low <= tick <= high and all(abs(math.log(tick / other)) >= apart for other in chosen):
            chosen.append(tick)
    return sorted(chosen)


def _table(found: Sequence[LevelEffect], metrics: Sequence[str]) -> Table:
    heads = ["setting", "against"]
    for name in metrics:
        heads += [metric_label(METRICS[name]), "95 % interval", "under other settings"]
    rows = []
    for one in found:
        row = [one.label, one.factor.levels[0]]
        for name in metrics:
            change = one.effects.get(name)
            row += [percent(change.change), _interval(change), _over_settings(change)] if change else [MISSING] * 3
        rows.append(row)
    return Table(heads, rows, frozenset(range(2, len(heads))))


def _interval(found: Effect) -> str:
    return f"{percent(found.low)} to {percent(found.high)}" if not math.isnan(found.low) else MISSING


def _over_settings(found: Effect) -> str:
    return f"{percent(found.smallest)} to {percent(found.largest)}" if found.settings > 1 else MISSING


def _caption(contents: Contents, kind: Kind, found: Sequence[LevelEffect]) -> str:
    firsts = ", ".join(f"{factor.label} {factor.levels[0]}" for factor in kind.factors)
    parts = [f"Change against the first value of each axis ({firsts}), with every other setting equal."]
    intervals = [e for one in found for e in one.effects.values()]
    if contents.is_virtual:
        parts.append("By the virtual clock nothing varies between samples of one seed, so what is shown is exact.")
    elif any(not math.isnan(e.low) for e in intervals):
        parts.append(
            "Thick line: 95 % interval over the samples, compared round by round; a filled mark means that it leaves "
            "out 0. Each interval is for itself: of twenty about one misses."
        )
    else:
        parts.append("One sample of each case: no interval, differences may be chance (-r adds samples).")
    if any(e.settings > 1 for e in intervals):
        parts.append("Thin line: from the smallest to the largest change under the other settings.")
    if any(len(factor.names) > 1 for factor in kind.factors):
        parts.append("Axes of one zip group move together and are one row here.")
    if len(found) > _ROWS_MOST:
        parts.append(f"Each plot shows the {_ROWS_MOST} largest changes; the table has all.")
    return " ".join(parts)


def _alt(found: Sequence[LevelEffect], metric: str) -> str:
    have = [one for one in found if metric in one.effects]
    top = sorted(have, key=lambda one: -abs(math.log1p(one.effects[metric].change)))[:3]
    told = "; ".join(f"{one.label} {percent(one.effects[metric].change)}" for one in top)
    return f"Changes against the first value of each axis. Largest of {metric_label(METRICS[metric])}: {told}."
