"""Numbers as text pictures: bars and sparklines of block characters, or of ASCII where those cannot be written.

No colour is used, so that none is missed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike


@dataclass(frozen=True, slots=True)
class Ink:
    """What pictures are drawn with: `levels` from almost nothing to full, for columns; `parts` of a cell, for bars."""

    levels: str
    parts: str


BLOCKS = Ink("▁▂▃▄▅▆▇█", "▏▎▍▌▋▊▉█")
ASCII = Ink("_.-:=+#@", "#")


def ink_for(encoding: str | None) -> Ink:
    """Blocks where the encoding has them."""
    try:
        (BLOCKS.levels + BLOCKS.parts).encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return ASCII
    return BLOCKS


def bar(value: float | None, top: float, width: int, ink: Ink = BLOCKS) -> str:
    """`value` as a share of `top`, at most `width` cells long; empty for what is missing, endless or not positive. What
    is more than nothing is never empty."""
    if value is None or not math.isfinite(value) or not math.isfinite(top) or value <= 0 or top <= 0 or width < 1:
        return ""
    steps = max(round(min(value / top, 1.0) * width * len(ink.parts)), 1)
    whole, part = divmod(steps, len(ink.parts))
    return ink.parts[-1] * whole + (ink.parts[part - 1] if part else "")


def sparkline(values: Sequence[float | None], top: float, ink: Ink = BLOCKS) -> str:
    """One character a value, on a scale from 0 to `top`; a space where the value is missing or not finite."""
    return "".join(_level(value, top, ink) for value in values)


def over_time(start_s: ArrayLike, length_s: ArrayLike, values: ArrayLike, width: int) -> list[float | None]:
    """Means of a quantity in `width` equal parts of the time from the first start to the last end, weighted by the
    length of what began in each; None where nothing did. Steps [n] of any order; values that are not finite are left
    out."""
    start, length, value = (np.asarray(found, dtype=np.float64) for found in (start_s, length_s, values))
    known = np.isfinite(start) & np.isfinite(length) & np.isfinite(value)
    start, length, value = start[known], np.maximum(length[known], 1e-12), value[known]
    if not start.size or width < 1:
        return []
    begin, end = float(start.min()), float((start + length).max())
    place = np.minimum(((start - begin) / max(end - begin, 1e-12) * width).astype(np.int64), width - 1)
    weight = np.bincount(place, weights=length, minlength=width)
    total = np.bincount(place, weights=length * value, minlength=width)
    return [float(t / w) if w > 0 else None for t, w in zip(total, weight, strict=True)]


def _level(value: float | None, top: float, ink: Ink) -> str:
    if value is None or not math.isfinite(value) or not math.isfinite(top):
        return " "
    share = min(max(value / top, 0.0), 1.0) if top > 0 else 0.0
    return ink.levels[min(int(share * len(ink.levels)), len(ink.levels) - 1)]
