"""Throughput against latency, with the front that the tables mark."""

from __future__ import annotations

import math
from collections.abc import Sequence

from kvbench.analysis.pareto import pareto_front
from kvbench.report.build import CaseLine
from kvbench.report.cells import metric_label
from kvbench.report.html.contents import Contents, Kind, range_cell, spread_of, words
from kvbench.report.html.figure import ROWS_MOST, Axis, Dot, Figure, LeftOut, Scatter, Table, axis_of, exact
from kvbench.store.case_columns import METRICS

TITLE = "Throughput against latency"
_RATE, _LATENCIES = "output_tokens_per_s", ("ttft_p50_s", "tpot_p50_s")
_NUMBERED = 20
DOTS_MOST, _WHISKERS_MOST = 150, 60
"""Of more a reader tells none apart, and they cost most of the page's size."""
_ROOM = 0.11
"""Share of a plot's width or height between two numbers, at least"""


def figure(contents: Contents) -> Figure | LeftOut:
    """One plot per latency that some case has; cases of the tables' front (◆) are numbered."""
    kind = contents.engine
    if kind is None:
        return LeftOut(TITLE, "no engine cases")
    ranked = kind.by_primary()
    latencies = [name for name in _LATENCIES if any(line.value(name) is not None for line in ranked)]
    if len(ranked) < 2 or not latencies:
        return LeftOut(TITLE, "fewer than two cases with a throughput and a latency")
    ranked = sorted(ranked, key=lambda line: not line.is_pareto)
    rest = len(ranked) - ROWS_MOST
    numbers = {line.case_id: str(n) for n, line in enumerate(ranked, 1) if line.is_pareto and n <= _NUMBERED}
    return Figure(
        name="front",
        title=TITLE,
        caption=(
            "Up and to the left is better. ◆ with a number: no other case has more output tokens/s at no worse "
            "TTFT p50 and TPOT p50 (the front of the tables); numbers stand where there is room. The line joins the "
            "cases that nothing beats in the two numbers of its own plot. "
            + (f"{DOTS_MOST} of {len(ranked)} cases are drawn, from the best to the last. " * (len(ranked) > DOTS_MOST))
            + (f"The other {rest} cases are in the table of all cases. " if rest > 0 else "")
            + _whiskers(ranked)
        ).strip(),
        alt=_alt(kind, ranked, latencies),
        plots=[_plot(kind, ranked, name, numbers) for name in latencies],
        tables=[_table(kind, ranked, latencies, numbers)],
    )


def _whiskers(ranked: Sequence[CaseLine]) -> str:
    if len(ranked) > _WHISKERS_MOST or all(line.samples < 2 for line in ranked):
        return ""
    return "Whiskers span the samples of a case."


def drawn(ranked: Sequence[CaseLine]) -> list[CaseLine]:
    """All cases, or `DOTS_MOST`: of the front and of the others, each in its order, evenly from first to last."""
    if len(ranked) <= DOTS_MOST:
        return list(ranked)
    front, others = ([line for line in ranked if line.is_pareto is wanted] for wanted in (True, False))
    kept = max(min(len(front), DOTS_MOST // 2), DOTS_MOST - len(others))
    return [*_evenly(front, kept), *_evenly(others, DOTS_MOST - kept)]


def _evenly(lines: Sequence[CaseLine], count: int) -> list[CaseLine]:
    return [lines[round(n * (len(lines) - 1) / max(count - 1, 1))] for n in range(count)]


def _plot(kind: Kind, ranked: Sequence[CaseLine], latency: str, numbers: dict[str, str]) -> Scatter:
    dots, points, shown = [], [], {line.case_id for line in drawn(ranked)}
    for line in ranked:
        x, y = spread_of(line, latency), spread_of(line, _RATE)
        if x is None or y is None:
            continue
        points.append((x.value, y.value))
        if line.case_id not in shown:
            continue
        if len(ranked) > _WHISKERS_MOST:
            x, y = exact(x.value), exact(y.value)
        told = words(line, kind.label(line), (_RATE, latency))
        dots.append(Dot(x, y, line.is_pareto, numbers.get(line.case_id, ""), told))
    x_axis = axis_of(METRICS[latency], _name(latency), [value for dot in dots for value in dot.x])
    dots = _with_room(dots, x_axis)
    marks = pareto_front(points, [False, True])
    front = sorted(point for point, mark in zip(points, marks, strict=True) if mark)
    return Scatter(x_axis, Axis("output tokens/s"), dots, front, f"against {_name(latency)}")


def _with_room(dots: Sequence[Dot], x_axis: Axis) -> list[Dot]:
    """The dots without the numbers that would stand on another one."""
    at = [(math.log(dot.x.value) if x_axis.is_log else dot.x.value, dot.y.value) for dot in dots]
    spans = [max(values) - min(values) or 1.0 for values in zip(*at, strict=True)]
    kept: list[tuple[float, float]] = []
    found = []
    for dot, (x, y) in zip(dots, at, strict=True):
        place = x / spans[0], y / spans[1]
        is_free = all(abs(place[0] - a) > _ROOM or abs(place[1] - b) > _ROOM for a, b in kept)
        if dot.number and is_free:
            kept.append(place)
        found.append(dot if is_free else dot._replace(number=""))
    return found


def _table(kind: Kind, ranked: Sequence[CaseLine], latencies: Sequence[str], numbers: dict[str, str]) -> Table:
    heads = ["", "case", metric_label(METRICS[_RATE]), *(metric_label(METRICS[name]) for name in latencies)]
    rows = [
        [
            f"◆ {numbers.get(line.case_id, '')}".strip() if line.is_pareto else "",
            kind.label(line),
            range_cell(line, _RATE),
            *(range_cell(line, name) for name in latencies),
        ]
        for line in ranked[:ROWS_MOST]
    ]
    return Table(heads, rows, frozenset(range(2, len(heads))))


def _alt(kind: Kind, ranked: Sequence[CaseLine], latencies: Sequence[str]) -> str:
    front = [kind.label(line) for line in ranked if line.is_pareto]
    shown = "; ".join(front[:5]) + ("; …" if len(front) > 5 else "")
    against = " and ".join(_name(name) for name in latencies)
    return f"{len(ranked)} cases by output tokens/s against {against}. On the front: {shown or 'none'}."


def _name(latency: str) -> str:
    return metric_label(METRICS[latency]).replace("ttft", "TTFT").replace("tpot", "TPOT")
