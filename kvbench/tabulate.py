"""One small table in four formats: aligned text, Markdown, CSV and JSON. Text from outside is shown as text (M68)."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
import sys
import textwrap
import unicodedata
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any, Literal

from kvbench.console import plain

Format = Literal["table", "json", "csv", "md"]
FORMATS: tuple[Format, ...] = ("table", "json", "csv", "md")
Cells = Sequence[Sequence[str]]

MISSING = "–"
_GAP = "  "
_NARROWEST = 12
"""No column is folded to fewer terminal cells than this."""
_HTML = (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"))
_MARKUP = re.compile(r"[\\`*\[\]|~$]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])|^[-+#](?![\w.])")
_NUMBERED = re.compile(r"^(\d+)([.)])(?= |$)")


def aligned(
    header: Sequence[str], rows: Cells, *, right: frozenset[int] = frozenset(), width: int | None = None
) -> str:
    """Columns padded to their widest cell, two spaces apart; columns in `right` are right-aligned.

    Where a line is longer than `width` terminal cells, the widest columns of text are folded.
    """
    lines = [[one_line(cell) for cell in line] for line in (header, *rows)]
    widths = [max(map(_cells_of, column)) for column in zip(*lines, strict=True)]
    if width is not None:
        widths = _fitted(widths, right, width)
    lines.insert(1, ["─" * size for size in widths])
    return "\n".join(text for line in lines for text in _text_lines(line, widths, right))


def markdown(header: Sequence[str], rows: Cells, *, right: frozenset[int] = frozenset()) -> str:
    """A pipe table; columns in `right` are right-aligned."""
    rule = ["---:" if at in right else "---" for at in range(len(header))]
    lines = [[escape_markdown(cell) for cell in line] for line in (header, *rows)]
    lines.insert(1, rule)
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def comma_separated(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """CSV with a header. A missing value is an empty cell, a truth value, list or mapping is spelled as in JSON;
    numbers are as they are, and so is text but for its control characters, which are spelled `\\x1b`."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([plain(name) for name in header])
    writer.writerows([_raw(cell) for cell in row] for row in rows)
    return out.getvalue().rstrip("\n")


def as_json(value: Any) -> str:
    """Indented JSON that holds exactly `value`; what a terminal might obey is written as `\\u001b`. NaN is refused,
    for it would not be JSON."""
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
    return "".join(char if char.isprintable() or char == "\n" else json.dumps(char)[1:-1] for char in text)


def escape_markdown(text: str) -> str:
    """Text on one line, of which neither Markdown nor HTML takes anything for markup."""
    shown = one_line(text)
    for char, entity in _HTML:
        shown = shown.replace(char, entity)
    return _NUMBERED.sub(r"\1\\\2", _MARKUP.sub(r"\\\g<0>", shown))


def one_line(text: str) -> str:
    """Text from outside on one line, whole, without control characters."""
    return " ".join(plain(text).split())


def value_cell(value: Any, limit: int = 48) -> str:
    """A setting or any text from outside on one line, without control characters, shortened in the middle."""
    if value is None or value == "":
        return MISSING
    if isinstance(value, dict | list):
        value = json.dumps(value, ensure_ascii=False)
    if isinstance(value, bool):
        value = "yes" if value else "no"
    text = one_line(str(value))
    half = (limit - 1) // 2
    return text if len(text) <= limit else f"{text[:half]}…{text[-half:]}"


def stdout_width() -> int | None:
    """Columns of the terminal on stdout; None in a pipe or a file, where nothing should be folded."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def number_columns(rows: Sequence[Sequence[Any]]) -> frozenset[int]:
    """The columns of raw values that hold numbers and nothing else; values may be missing."""
    columns = list(zip(*rows, strict=True))
    return frozenset(at for at, values in enumerate(columns) if _are_numbers(values))


def _are_numbers(values: Sequence[Any]) -> bool:
    present = [value for value in values if value is not None]
    return bool(present) and all(isinstance(v, int | float) and not isinstance(v, bool) for v in present)


def _raw(value: Any) -> Any:
    if isinstance(value, bool | dict | list):
        value = json.dumps(value, ensure_ascii=False)
    return plain(value) if isinstance(value, str) else value


def _cells_of(text: str) -> int:
    """Terminal cells: two for a wide character, none for a combining one."""
    if text.isascii():
        return len(text)
    return sum(map(_cells_of_one, text))


def _cells_of_one(char: str) -> int:
    if unicodedata.category(char) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def _fitted(widths: list[int], right: frozenset[int], limit: int) -> list[int]:
    """The widest column gives way, a cell at a time, until a line fits; numbers and narrow columns never do."""
    widths = list(widths)
    foldable = [at for at in range(len(widths)) if at not in right]
    for _ in range(sum(widths) + len(_GAP) * (len(widths) - 1) - limit):
        at = max(foldable, key=widths.__getitem__, default=None)
        if at is None or widths[at] <= _NARROWEST:
            break
        widths[at] -= 1
    return widths


def _text_lines(line: Sequence[str], widths: Sequence[int], right: frozenset[int]) -> list[str]:
    folded = [_folded(cell, width) for cell, width in zip(line, widths, strict=True)]
    return [
        _GAP.join(_padded(cell, widths[at], at in right) for at, cell in enumerate(part)).rstrip()
        for part in zip_longest(*folded, fillvalue="")
    ]


def _folded(text: str, width: int) -> list[str]:
    if _cells_of(text) <= width:
        return [text]
    # textwrap counts characters, of which a wide one takes two cells.
    return textwrap.wrap(text, width if text.isascii() else width // 2, break_on_hyphens=False)


def _padded(cell: str, width: int, is_right: bool) -> str:
    space = " " * (width - _cells_of(cell))
    return space + cell if is_right else cell + space
