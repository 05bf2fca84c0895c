"""HTML from Python: text is escaped unless it is `Html` already, so that nothing from outside becomes markup (M68)."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterable
from typing import Any

from kvbench.console import plain
from kvbench.report.html.figure import Table

_VOID = frozenset({"meta", "br", "hr"})


class Html(str):
    """Markup; everything else that goes into an element is text."""

    __slots__ = ()


def text(value: str) -> Html:
    """Text from anywhere as markup that shows it: control characters are spelled out, quotes are escaped too."""
    return Html(html.escape(plain(value), quote=True))


def el(tag: str, *children: str | None, **attributes: str | bool | int | None) -> Html:
    """An element. `class_` is `class`, `data_chart` is `data-chart`; None and False leave an attribute out."""
    shown = "".join(_attribute(name, value) for name, value in attributes.items() if value not in (None, False))
    if tag in _VOID:
        return Html(f"<{tag}{shown}>")
    return Html(f"<{tag}{shown}>{joined(children)}</{tag}>")


def joined(children: Iterable[str | None]) -> Html:
    """Children one after the other; None is nothing."""
    return Html("".join(child if isinstance(child, Html) else text(child) for child in children if child is not None))


def script_json(value: Any) -> Html:
    """JSON that a script element can hold: nothing in it ends the element or opens a comment."""
    found = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return Html(found.replace("<", "\\u003c").replace(">", "\\u003e"))


def table(found: Table, caption: str = "") -> Html:
    """A table in a box of its own that scrolls where it is too wide. A report has thousands of cells: closing tags that
    HTML does not need are left out, and a run of columns of numbers is aligned by one class (`alignment`)."""
    right = sorted(found.right)
    is_one_run = bool(right) and right == list(range(right[0], right[-1] + 1))
    marked = frozenset[int]() if is_one_run else found.right
    head = joined(_cell("th", name, at in marked, ' scope="col"') for at, name in enumerate(found.heads))
    body = joined(Html("<tr>" + joined(_cell("td", cell, at in marked) for at, cell in enumerate(row)))
                  for row in found.rows)  # fmt: skip
    about = el("caption", caption) if caption else None
    aligned = f"r{right[0] + 1}-{right[-1] + 1}" if is_one_run else None
    inner = el("table", about, el("thead", Html(f"<tr>{head}")), el("tbody", body), class_=aligned)
    return el("div", inner, class_="scroll", tabindex=0, role="region", aria_label=caption or "table")


def alignment(page: str) -> Html:
    """Style rules for the classes of `table` that the page uses."""
    runs = sorted(set(re.findall(r'<table class="r(\d+)-(\d+)"', page)))
    return Html("".join(f".r{a}-{b} tr>:nth-child(n+{a}):nth-child(-n+{b}){{text-align:right}}" for a, b in runs))


def _cell(tag: str, content: str, is_right: bool, extra: str = "") -> Html:
    return Html(f"<{tag}{' class=r' if is_right else ''}{extra}>{text(content)}")


def _attribute(name: str, value: str | bool | int | None) -> str:
    name = name.rstrip("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{text(str(value))}"'
