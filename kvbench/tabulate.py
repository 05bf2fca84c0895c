"""One small table in four formats: aligned text, Markdown, CSV and JSON. Text from outside is shown as text (M68)."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from typing import Any, Literal

from kvbench.console import plain

Format = Literal["table", "json", "csv", "md"]
FORMATS: tuple[Format, ...] = ("table", "json", "csv", "md")
Cells = Sequence[Sequence[str]]


def aligned(header: Sequence[str], rows: Cells, *, right: frozenset[int] = frozenset()) -> str:
    """Columns padded to their widest cell, two spaces apart; columns in `right` are right-aligned."""
    lines = [[plain(cell).replace("\n", " ") for cell in line] for line in (header, *rows)]
    widths = [max(len(line[at]) for line in lines) for at in range(len(header))]
    rule = ["─" * width for width in widths]
    return "\n".join(_line(line, widths, right) for line in (lines[0], rule, *lines[1:]))


def markdown(header: Sequence[str], rows: Cells) -> str:
    """A pipe table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(escape_markdown(cell) for cell in line)} |" for line in lines)


def comma_separated(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """CSV with a header; a missing value is an empty cell."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(["" if cell is None else cell for cell in row] for row in rows)
    return out.getvalue().rstrip("\n")


def as_json(value: Any) -> str:
    """Indented JSON; NaN is refused, for it would not be JSON."""
    return json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)


def escape_markdown(text: str) -> str:
    """Text that neither Markdown nor HTML takes for markup."""
    shown = plain(text).replace("\n", " ")
    for char, entity in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;")):
        shown = shown.replace(char, entity)
    return "".join(f"\\{char}" if char in "\\`*_[]|#!" else char for char in shown)


def _line(cells: Sequence[str], widths: Sequence[int], right: frozenset[int]) -> str:
    padded = (
        cell.rjust(width) if at in right else cell.ljust(width)
        for at, (cell, width) in enumerate(zip(cells, widths, strict=True))
    )
    return "  ".join(padded).rstrip()
