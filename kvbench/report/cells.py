"""A metric as a person reads it."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

from kvbench.store.case_columns import case_columns
from kvbench.store.columns import Column
from kvbench.tabulate import MISSING, value_cell
from kvbench.units import format_bytes, format_count, format_seconds, scientific

_SHARES = ("share", "hit_rate", "utilisation", "agreement", "spread")


def metric_cell(value: float | None, column: Column) -> str:
    """A metric with its unit, scaled; `–` when it is missing or not finite."""
    if value is None or not math.isfinite(value):
        return MISSING
    if column.unit == "s":
        return format_seconds(value)
    if column.unit in ("B", "B/s"):
        return format_bytes(value) + column.unit[1:]
    if is_share(column):
        return f"{value:.1%}" if abs(value) < 1e12 else scientific(value)
    return _number(value, column)


def is_share(column: Column) -> bool:
    """Whether people read the metric in per cent."""
    return any(word in column.name for word in _SHARES)


def setting_cell(name: str, value: Any) -> str:
    """The value of an axis or a setting; bytes are scaled."""
    if isinstance(value, int) and not isinstance(value, bool) and name in _sizes():
        return format_bytes(value)
    return value_cell(value)


@cache
def _sizes() -> frozenset[str]:
    return frozenset(column.name for column in case_columns() if column.unit == "B")


def metric_label(column: Column) -> str:
    """`ttft_p50_s` → `ttft p50`, `output_tokens_per_s` → `output tokens/s`: the cells carry the scaled unit."""
    name = column.name
    if column.unit == "s":
        name = name.removesuffix("_s")
    return name.replace("_per_", "/").replace("_", " ")


def _number(value: float, column: Column) -> str:
    if column.type == "int64" and float(value).is_integer():
        return format_count(value)
    if value == 0:
        return "0"
    if abs(value) < 1e-20 or abs(value) >= 1e15:
        return scientific(value)
    if abs(value) < 0.01:
        return f"{value:.2e}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
