"""What a figure shows, independent of how it is drawn: points with their words, a caption, a table of the same numbers.

Text from outside is not escaped here; whoever writes it into a page does that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from kvbench.store.columns import Column

SERIES_MOST = 6
"""Lines that can be told apart in one plot."""
ROWS_MOST = 40
"""Cases in a figure's table; of more the rest is in the table of all cases."""


class Table(NamedTuple):
    """Cells in words; columns in `right` hold numbers. `title` where a figure has several tables."""

    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    right: frozenset[int] = frozenset()
    title: str = ""


class Axis(NamedTuple):
    """A plot's axis. `unit` decides how ticks are written: s, share, change or "" for plain numbers."""

    title: str
    unit: str = ""
    is_log: bool = False


class Range(NamedTuple):
    """A value with the ends of its range; all equal where there is none."""

    value: float
    low: float
    high: float


class Dot(NamedTuple):
    """One case in a scatter plot; `number` names it beside its mark, "" where it has none."""

    x: Range
    y: Range
    is_front: bool
    number: str
    words: Sequence[tuple[str, str]]


class Mark(NamedTuple):
    """One point of a line; `words` are (name, text) for whoever points at it."""

    x: str | float
    y: Range
    words: Sequence[tuple[str, str]]


class Line(NamedTuple):
    """One series by its name."""

    name: str
    marks: Sequence[Mark]


class Bar(NamedTuple):
    """One row of an interval plot: a ratio to the reference, its interval and its range over the other settings."""

    label: str
    ratio: Range
    over_settings: Range
    text: str
    is_clear: bool
    words: Sequence[tuple[str, str]]


class Cell(NamedTuple):
    """One cell of a heat map; `shade` 0 … 1 from lowest to highest."""

    x: str
    y: str
    shade: float
    text: str
    words: Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Scatter:
    x: Axis
    y: Axis
    dots: Sequence[Dot]
    front: Sequence[tuple[float, float]]
    """Points of the front in this plot's own two numbers, to be joined"""
    title: str = ""


@dataclass(frozen=True, slots=True)
class Lines:
    x: Axis
    y: Axis
    lines: Sequence[Line]
    categories: Sequence[str] | None = None
    """The x values in their order, evenly spaced; None: x is a number"""
    is_stepped: bool = False
    has_zero: bool = True
    title: str = ""


@dataclass(frozen=True, slots=True)
class Intervals:
    x: Axis
    bars: Sequence[Bar]
    ticks: Sequence[float]
    """Ratios at which the axis has a tick"""
    title: str = ""


@dataclass(frozen=True, slots=True)
class HeatMap:
    x: str
    y: str
    columns: Sequence[str]
    rows: Sequence[str]
    cells: Sequence[Cell]
    title: str = ""


class Bucket(NamedTuple):
    """Some steps together: from `start` to `end` seconds, lowest and highest value in them."""

    start: float
    end: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Band:
    x: Axis
    y: Axis
    buckets: Sequence[Bucket]
    top: float | None = None
    """Upper end of the y axis where the quantity has one"""
    title: str = ""


Plot = Scatter | Lines | Intervals | HeatMap | Band


@dataclass(frozen=True, slots=True)
class Figure:
    """`alt` says in words what the plots show; `caption` how to read them."""

    name: str
    title: str
    caption: str
    alt: str
    plots: Sequence[Plot]
    tables: Sequence[Table]
    series: Sequence[str] = field(default_factory=tuple)
    """Names of the series in the order of their styles: the legend"""


class LeftOut(NamedTuple):
    """A figure that this run has no data for, and why."""

    title: str
    why: str


def exact(value: float) -> Range:
    return Range(value, value, value)


def is_wide(values: Sequence[float], factor: float = 20.0) -> bool:
    """Whether positive values span so much that only a logarithmic axis shows them all."""
    return bool(values) and min(values) > 0 and max(values) / min(values) > factor


def axis_of(column: Column, title: str, values: Sequence[float], *, may_be_log: bool = True) -> Axis:
    """An axis for a metric: ticks by its unit."""
    from kvbench.report.cells import is_share

    unit = "s" if column.unit == "s" else "share" if is_share(column) else ""
    return Axis(title, unit, may_be_log and is_wide(values))
