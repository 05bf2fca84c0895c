"""One value as a person reads it, and text from outside made harmless for the place where it is shown (M68)."""

from __future__ import annotations

import html
import json
import math
import re
from typing import Any

from kvbench.console import plain
from kvbench.store.columns import Column
from kvbench.units import format_bytes, format_count, format_seconds

MISSING = "–"
_SHARES = ("share", "hit_rate", "utilisation", "agreement", "spread")
_MARKDOWN = re.compile(r"([\\`*\[\]|~$]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9]))")


def metric_cell(value: float | None, column: Column) -> str:
    """A metric with its unit, scaled; `–` when it is missing or not finite."""
    if value is None or not math.isfinite(value):
        return MISSING
    if column.unit == "s":
        return format_seconds(value)
    if column.unit in ("B", "B/s"):
        return format_bytes(value) + column.unit[1:]
    if any(word in column.name for word in _SHARES):
        return f"{value:.1%}"
    return _number(value, column)


def metric_label(column: Column) -> str:
    """`ttft_p50_s` → `ttft p50`, `output_tokens_per_s` → `output tokens/s`: the cells carry the scaled unit."""
    name = column.name
    for unit, ending in (("s", "_s"), ("B", "_bytes")):
        if column.unit == unit:
            name = name.removesuffix(ending)
    return name.replace("_per_", "/").replace("_", " ")


def value_cell(value: Any, limit: int = 48) -> str:
    """A setting or any text from outside, on one line, without control characters, shortened in the middle."""
    if value is None or value == "":
        return MISSING
    if isinstance(value, dict | list):
        value = json.dumps(value, ensure_ascii=False)
    if isinstance(value, bool):
        value = "yes" if value else "no"
    text = " ".join(plain(str(value)).split())
    half = (limit - 1) // 2
    return text if len(text) <= limit else f"{text[:half]}…{text[-half:]}"


def one_line(text: str) -> str:
    """Text from outside on one line, whole."""
    return " ".join(plain(text).split())


def markdown(text: str) -> str:
    """Text as it is, in Markdown that may be rendered to HTML: no tag, emphasis, link text or column of its own."""
    return _MARKDOWN.sub(r"\\\1", html.escape(one_line(text), quote=False))


def _number(value: float, column: Column) -> str:
    if column.type == "int64" and float(value).is_integer():
        return format_count(value)
    if value == 0:
        return "0"
    if abs(value) < 0.01:
        return f"{value:.2e}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
