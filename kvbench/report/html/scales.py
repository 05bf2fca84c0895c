"""Axes of the charts: scales, ticks and how ticks are written."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import altair as alt

from kvbench.report.html.figure import Axis

_LOG_TICKS_MOST = 6
_TICK_LABELS = {
    "s": "format(datum.value, '~s') + 's'",
    "share": "format(datum.value, '~%')",
    "change": ("(datum.value < 1 ? '-' : datum.value > 1 ? '+' : '') + format(abs(datum.value - 1), '~%')"),
    "": "format(datum.value, '~s')",
}
"""Vega expressions by an axis' unit"""
Channel = Any


def x_of(axis: Axis, values: Sequence[float]) -> Channel:
    return alt.X("x:Q", **_scaled(axis, values, has_zero=False))


def y_of(axis: Axis, values: Sequence[float], *, has_zero: bool) -> Channel:
    return alt.Y("y:Q", **_scaled(axis, values, has_zero=has_zero))


def category(axis: Axis, values: Sequence[str]) -> Channel:
    """Words in their order, evenly spaced."""
    scale = alt.Scale(type="point", domain=list(values), padding=0.3)
    words = alt.Axis(title=axis.title, labelAngle=0, labelOverlap="greedy", labelLimit=110)
    return alt.X("x:O", sort=list(values), scale=scale, axis=words)


def ratio(axis: Axis, ticks: Sequence[float], values: Sequence[float]) -> Channel:
    """Ratios on a logarithmic scale with room at both ends, written as changes in per cent."""
    low, high = min([*values, 0.98]), max([*values, 1.02])
    room = (high / low) ** 0.05
    scale = alt.Scale(type="log", domain=[low / room, high * room], nice=False)
    return alt.X("x:Q", scale=scale, axis=ticked(axis, values=list(ticks)))


def ticked(axis: Axis, **options: Any) -> Any:
    """The axis with its ticks in its unit; words that would touch each other are left out."""
    label = _TICK_LABELS[axis.unit]
    return alt.Axis(title=axis.title, labelExpr=label, labelOverlap="greedy", labelFlush=False, **options)


def _scaled(axis: Axis, values: Sequence[float], *, has_zero: bool) -> dict[str, Any]:
    if axis.is_log:
        return {"scale": alt.Scale(type="log", nice=False), "axis": ticked(axis, values=log_ticks(values))}
    return {"scale": alt.Scale(zero=has_zero, nice=True), "axis": ticked(axis, tickCount=5)}


def log_ticks(values: Sequence[float]) -> list[float]:
    """Round numbers within positive values: 1, 2 and 5 of every power of ten, or fewer where those are too many."""
    low, high = min(values), max(values)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks: list[float] = []
    for digits in ((1, 2, 5), (1, 3), (1,)):
        ticks = [tick for power in powers for digit in digits if low <= (tick := float(f"{digit}e{power}")) <= high]
        if len(ticks) <= _LOG_TICKS_MOST:
            break
    return ticks
