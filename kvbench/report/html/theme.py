"""Colours and shapes of the charts: told apart without colour, readable on light and dark.

Charts name colours by CSS variables, so that one drawing follows the page from light to dark. The pairs were chosen
from Okabe and Ito's palette, darkened for white and lightened for black, each at a contrast of at least 3 to its
background; series differ in dash and shape as well.
"""

from __future__ import annotations

from typing import Any

LIGHT = {
    "bg": "#ffffff", "card": "#ffffff", "fg": "#16191d", "muted": "#545c66", "line": "#d5dae0", "grid": "#e6e9ed",
    "link": "#0a5ea8", "s1": "#0072b2", "s2": "#c44e00", "s3": "#00795c", "s4": "#a6478a", "s5": "#6d5a00",
    "s6": "#4c4f54", "faint": "#7b838d", "warn": "#8a4b00", "warn-bg": "#fff4e2", "virtual": "#6b2fa0",
    "virtual-bg": "#f4ecfb", "note-bg": "#f3f5f7",
}  # fmt: skip
DARK = {
    "bg": "#121519", "card": "#181c21", "fg": "#e8ebee", "muted": "#aab2bc", "line": "#39414a", "grid": "#2a3037",
    "link": "#7cc0ff", "s1": "#56b4e9", "s2": "#f0a03c", "s3": "#2cc6a0", "s4": "#e193c8", "s5": "#e3d34a",
    "s6": "#c3c8ce", "faint": "#8b949e", "warn": "#ffc168", "warn-bg": "#33270f", "virtual": "#d3b1f5",
    "virtual-bg": "#2a1f38", "note-bg": "#1f242a",
}  # fmt: skip

DASHES = ((1, 0), (7, 3), (2, 2), (9, 3, 2, 3), (5, 2), (12, 4))
SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down")
_RAMP = ("#00224e", "#123570", "#3b496c", "#575d6d", "#707173", "#8a8678", "#a59c74", "#c3b369", "#e1cc55", "#fee838")
"""Cividis (Nuñez, Anderton and Renslow 2018): one order of lightness for every kind of colour vision."""


def colour(series: int) -> str:
    return f"var(--s{series % len(DASHES) + 1})"


def shade(share: float) -> tuple[str, str]:
    """(colour of a cell, colour of the text on it) for 0 … 1."""
    place = min(max(share, 0.0), 1.0) * (len(_RAMP) - 1)
    low = min(int(place), len(_RAMP) - 2)
    ends = (_rgb(_RAMP[low]), _rgb(_RAMP[low + 1]))
    mixed = tuple(round(a + (b - a) * (place - low)) for a, b in zip(*ends, strict=True))
    back = "#" + "".join(f"{part:02x}" for part in mixed)
    return back, max(("#ffffff", "#000000"), key=lambda text: contrast(text, back))


def contrast(one: str, other: str) -> float:
    """WCAG 2 contrast ratio of two colours, 1 … 21."""
    low, high = sorted((_luminance(one), _luminance(other)))
    return (high + 0.05) / (low + 0.05)


def css_variables(colours: dict[str, str]) -> str:
    return "".join(f"--{name}:{value};" for name, value in colours.items())


def chart_config() -> dict[str, Any]:
    """What all charts share, in Vega-Lite's words."""
    text, faint = "var(--fg)", "var(--muted)"
    axis = {
        "labelColor": text, "titleColor": faint, "titleFontWeight": "normal", "labelFontSize": 12, "titleFontSize": 12,
        "gridColor": "var(--grid)", "domainColor": "var(--line)", "tickColor": "var(--line)", "titlePadding": 6,
        "labelLimit": 150,
    }  # fmt: skip
    return {
        "aria": False,
        "background": "transparent",
        "font": "sans-serif",
        "axis": axis,
        "view": {"stroke": "var(--line)"},
        "legend": {"disable": True},
    }


def _luminance(colour: str) -> float:
    parts = (part / 255 for part in _rgb(colour))
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _rgb(colour: str) -> tuple[int, int, int]:
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)
