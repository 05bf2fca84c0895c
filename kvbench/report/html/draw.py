"""Figures as Vega-Lite charts. Text from outside goes into data and titles only, never into an expression."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt

from kvbench.report.html import figure as f
from kvbench.report.html.scales import category, ratio, ticked, x_of, y_of
from kvbench.report.html.theme import DASHES, SHAPES, colour, shade

_HEIGHT, _BAR_HEIGHT, _CELL_HEIGHT, _BAND_HEIGHT = 250, 36, 30, 110
_CELL_TEXT_MOST = 7
"""Columns of a heat map with room for text in their cells"""
_MARKS_ON_STEPS = 6
_FRONT, _OTHER = "var(--s2)", "var(--s1)"
Chart = Any


def chart(plot: f.Plot, width: int | str) -> dict[str, Any]:
    """A plot in Vega-Lite, without its title and `theme.chart_config`. `width` in pixels, or `container`."""
    fitted = alt.AutoSizeParams(type="fit-x", contains="padding")
    drawn = _DRAWERS[type(plot)](plot).properties(width=width, autosize=fitted)
    found: dict[str, Any] = drawn.to_dict()
    found.pop("config", None)
    return found


def _scatter(plot: f.Scatter) -> Chart:
    ordered = sorted(plot.dots, key=lambda dot: (not dot.is_front, dot.x.value))
    rows = [
        {"x": d.x.value, "y": d.y.value, "tip": _tip(d.words)} | ({"front": True} if d.is_front else {})
        for d in ordered
    ]  # fmt: skip
    numbered = [dot for dot in ordered if dot.number]
    x = x_of(plot.x, [end for d in plot.dots for end in d.x])
    y = y_of(plot.y, [end for d in plot.dots for end in d.y], has_zero=False)
    base = _base(rows).encode(x=x, y=y, tooltip="tip:N")
    front = _base([{"x": x_, "y": y_} for x_, y_ in plot.front]).encode(x=x, y=y)
    return alt.layer(
        front.mark_line(color=_FRONT, interpolate="step-after", strokeWidth=1.2, opacity=0.7),
        *_whiskers(ordered, x, y),
        base.transform_filter("!datum.front").mark_point(color=_OTHER, size=55, strokeWidth=1.6, opacity=1),
        base.transform_filter("datum.front").mark_point(color=_FRONT, fill=_FRONT, shape="diamond", size=90, opacity=1),
        *(_numbers(numbered[at::2], x, y, side) for at, side in ((0, 10), (1, -10)) if numbered[at::2]),
    ).properties(height=_HEIGHT)


def _whiskers(dots: Sequence[f.Dot], x: Chart, y: Chart) -> list[Chart]:
    """The ranges of dots that have one."""
    rows = [
        {"x": d.x.value, "x1": d.x.low, "x2": d.x.high, "y": d.y.value, "y1": d.y.low, "y2": d.y.high}
        for d in dots
        if d.x.low != d.x.high or d.y.low != d.y.high
    ]
    if not rows:
        return []
    base = _base(rows).mark_rule(color=_OTHER, opacity=0.45)
    return [base.encode(x=_end("x1", x), x2="x2:Q", y=y), base.encode(x=x, y=_end("y1", y), y2="y2:Q")]


def _numbers(dots: Sequence[f.Dot], x: Chart, y: Chart, side: int) -> Chart:
    """The numbers of the front, above and below by turns, so that neighbours do not write over each other."""
    base = _base([{"x": dot.x.value, "y": dot.y.value, "n": dot.number} for dot in dots])
    return base.mark_text(color="var(--fg)", fontSize=12, dx=side, dy=-side).encode(x=x, y=y, text="n:N")


def _lines(plot: f.Lines) -> Chart:
    marks = [mark for line in plot.lines for mark in line.marks]
    numbers = [mark.x for mark in marks if not isinstance(mark.x, str)]
    x = x_of(plot.x, numbers) if plot.categories is None else category(plot.x, plot.categories)
    y = y_of(plot.y, [end for mark in marks for end in mark.y], has_zero=plot.has_zero)
    layers = [layer for at, line in enumerate(plot.lines) if line.marks for layer in _line(plot, line, at, x, y)]
    return alt.layer(*layers).properties(height=_HEIGHT)


def _line(plot: f.Lines, line: f.Line, at: int, x: Chart, y: Chart) -> list[Chart]:
    rows = [{"x": m.x, "y": m.y.value, "tip": _tip(m.words)} for m in line.marks]
    base, ink, dash = _base(rows).encode(x=x, y=y, tooltip="tip:N"), colour(at), list(DASHES[at % len(DASHES)])
    path = "step-after" if plot.is_stepped else "linear"
    found = [base.mark_line(color=ink, strokeDash=dash, interpolate=path, strokeWidth=2)]
    wide = [{"x": m.x, "y1": m.y.low, "y2": m.y.high} for m in line.marks if m.y.low != m.y.high]
    if wide:
        whiskers = _base(wide).mark_rule(color=ink, opacity=0.5, strokeWidth=2)
        found.append(whiskers.encode(x=x, y=_end("y1", y), y2="y2:Q"))
    if plot.is_stepped:
        few = rows[:: max(1, len(rows) // _MARKS_ON_STEPS)]
        base = _base(few).encode(x=x, y=y, tooltip="tip:N")
    return [*found, base.mark_point(color=ink, fill=ink, shape=SHAPES[at % len(SHAPES)], size=45, opacity=1)]


def _intervals(plot: f.Intervals) -> Chart:
    rows = [
        {"row": at, "label": b.label, "text": b.text, "x": b.ratio.value, "x1": b.ratio.low, "x2": b.ratio.high,
         "o1": b.over_settings.low, "o2": b.over_settings.high, "clear": b.is_clear, "tip": _tip(b.words)}
        for at, b in enumerate(plot.bars)
    ]  # fmt: skip
    x = ratio(plot.x, plot.ticks, [end for b in plot.bars for end in (*b.ratio, *b.over_settings)])
    y = alt.Y("row:O", axis=None, scale=alt.Scale(paddingInner=0, paddingOuter=0))
    base = _base(rows).encode(y=y, tooltip="tip:N")
    filled = alt.condition("datum.clear", alt.value(_OTHER), alt.value("var(--bg)"))
    return alt.layer(
        _base([{"x": 1.0}]).mark_rule(color="var(--muted)", strokeWidth=1.2).encode(x=x),
        base.mark_rule(color="var(--faint)", yOffset=8).encode(x=_end("o1", x), x2="o2:Q"),
        base.mark_rule(color=_OTHER, strokeWidth=5, opacity=0.5, yOffset=8).encode(x=_end("x1", x), x2="x2:Q"),
        base.mark_point(size=55, color=_OTHER, strokeWidth=1.6, yOffset=8, opacity=1).encode(x=x, fill=filled),
        _halo(base, align="left", dx=4, limit=290).encode(x=alt.value(0), text="label:N"),
        _halo(base, align="right", dx=-4).encode(x=alt.value(alt.ExprRef("width")), text="text:N"),
    ).properties(height=_BAR_HEIGHT * len(plot.bars))


def _halo(base: Chart, **place: Any) -> Chart:
    """Text in the upper half of its row that no line crosses: the page's style paints its stroke behind it."""
    return base.mark_text(color="var(--fg)", stroke="var(--bg)", strokeWidth=5, fontSize=12, dy=-7, **place)


def _heat_map(plot: f.HeatMap) -> Chart:
    rows = []
    for cell in plot.cells:
        back, ink = shade(cell.shade)
        rows.append({"x": cell.x, "y": cell.y, "back": back, "ink": ink, "text": cell.text, "tip": _tip(cell.words)})
    bare: dict[str, Any] = {"ticks": False, "domain": False, "labelOverlap": "greedy"}
    across = alt.Axis(title=None, labelAngle=0, orient="top", labelLimit=90, **bare)
    down = alt.Axis(title=None, labelLimit=130, **bare)
    x = alt.X("x:O", sort=list(plot.columns), scale=alt.Scale(domain=list(plot.columns)), axis=across)
    y = alt.Y("y:O", sort=list(plot.rows), scale=alt.Scale(domain=list(plot.rows)), axis=down)
    base = _base(rows).encode(x=x, y=y, tooltip="tip:N")
    layers = [base.mark_rect(stroke="var(--bg)", strokeWidth=2).encode(fill=alt.Fill("back:N", scale=None))]
    if len(plot.columns) <= _CELL_TEXT_MOST:
        layers.append(base.mark_text(fontSize=12).encode(text="text:N", color=alt.Color("ink:N", scale=None)))
    return alt.layer(*layers).properties(height=_CELL_HEIGHT * len(plot.rows))


def _band(plot: f.Band) -> Chart:
    rows = [{"x": b.start, "y1": b.low, "y2": b.high} for b in plot.buckets]
    last = plot.buckets[-1]
    rows.append({"x": last.end, "y1": last.low, "y2": last.high})
    domain = {} if plot.top is None else {"domain": [0, plot.top]}
    y = alt.Y("y1:Q", scale=alt.Scale(zero=True, **domain), axis=ticked(plot.y, tickCount=4))
    base = _base(rows).encode(x=x_of(plot.x, [row["x"] for row in rows]))
    area = base.mark_area(color=_OTHER, fillOpacity=0.3, stroke=_OTHER, strokeWidth=1, interpolate="step-after")
    return area.encode(y=y, y2="y2:Q").properties(height=_BAND_HEIGHT)


_DRAWERS: dict[type, Any] = {
    f.Scatter: _scatter, f.Lines: _lines, f.Intervals: _intervals, f.HeatMap: _heat_map, f.Band: _band,
}  # fmt: skip


def _base(rows: Sequence[dict[str, Any]]) -> Chart:
    """A chart of rows; numbers to six digits, which is more than a screen can show."""
    short = [{name: float(f"{v:.6g}") if isinstance(v, float) else v for name, v in row.items()} for row in rows]
    return alt.Chart(alt.InlineData(values=short))


def _end(field: str, channel: Chart) -> Chart:
    """One end of a range on the scale of the value."""
    return type(channel)(f"{field}:Q", scale=channel["scale"], axis=channel["axis"])


def _tip(words: Sequence[tuple[str, str]]) -> str:
    """What is shown to whoever points at a mark: one line a fact; the page's script shows it as text."""
    return "\n".join(text if name == "case" else f"{name}: {text}" for name, text in words)
