"""Seconds, bytes and tokens: scaled for people, plain SI base units for machines."""

from __future__ import annotations

import math
import re

from kvbench.errors import UsageError

_BINARY = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_DECIMAL = {"kB": 10**3, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*")
LARGEST_SIZE = 2**63 - 1
_READABLE = 1e15
"""Of larger numbers a reader would count the digits."""
_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_TIME_STEPS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))


def parse_bytes(text: str | int) -> int:
    """`"64MiB"`, `"1.5 GB"` or a plain number of bytes → bytes."""
    if isinstance(text, int) and not isinstance(text, bool):
        return text
    found = _SIZE.fullmatch(str(text))
    unit = found.group(2) if found else ""
    scale = {**_BINARY, **_DECIMAL, "": 1}.get(unit)
    if found is None or scale is None or float(found.group(1)) * scale > LARGEST_SIZE:
        raise UsageError(
            f"{text!r} is not a size in bytes", hint="write a number with B, KiB, MiB, GiB, MB or GB, as in 64MiB"
        )
    return int(float(found.group(1)) * scale)


def format_bytes(count: float) -> str:
    """1536 → `1.50 KiB`; three significant digits, binary units."""
    size = float(count)
    if not abs(size) < _READABLE * _BINARY["TiB"]:
        return f"{scientific(size)} B" if math.isfinite(size) else "–"
    for unit, scale in reversed(_BINARY.items()):
        if abs(size) >= scale and scale > 1:
            return f"{_three_digits(size / scale)} {unit}"
    return f"{size:.0f} B"


def format_seconds(seconds: float | None) -> str:
    """0.00123 → `1.23 ms`; a missing or non-finite value → `–`."""
    if seconds is None or not math.isfinite(seconds):
        return "–"
    if abs(seconds) >= _READABLE or 0 < abs(seconds) < 1e-14:
        return f"{scientific(seconds)} s"
    if seconds >= 120:
        return format_duration(seconds)
    for scale, unit in _TIME_STEPS:
        if abs(seconds) >= scale:
            return f"{_three_digits(seconds / scale)} {unit}"
    return "0 s" if seconds == 0 else f"{seconds / 1e-9:.2g} ns"


def format_duration(seconds: float) -> str:
    """83 → `1m23s`, 4000 → `1h06m`: for elapsed and remaining time."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02d}m"


def format_count(value: float) -> str:
    """12345 → `12,345`."""
    return f"{value:,.0f}" if abs(value) < _READABLE else scientific(value)


def scientific(value: float) -> str:
    """1.5e300 → `1.50×10³⁰⁰`; a missing or non-finite value → `–`."""
    if not math.isfinite(value):
        return "–"
    digits, power = f"{value:.2e}".split("e")
    return f"{digits}×10{str(int(power)).translate(_SUPERSCRIPTS)}"


def _three_digits(value: float) -> str:
    if abs(value) >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"
