"""A plain list of rows of text in one of four formats, for commands whose answer is a list."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kvbench.console import plain
from kvbench.report.cells import markdown, value_cell

if TYPE_CHECKING:
    from rich.console import Console


def write_listing(heads: Sequence[str], rows: Sequence[Sequence[Any]], format: str, console: Console) -> None:
    """Write rows of any values under `heads` to the console as table, md, csv or json (a list of objects)."""
    if format == "table":
        console.print(_table(heads, rows))
        return
    text = {"md": _markdown, "csv": _csv, "json": _json}[format](heads, rows)
    console.file.write(text)


def _table(heads: Sequence[str], rows: Sequence[Sequence[Any]]) -> object:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    for head in heads:
        table.add_column(Text(head), overflow="fold")
    for row in rows:
        table.add_row(*(Text(value_cell(value, limit=120)) for value in row))
    return table


def _markdown(heads: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    lines = [list(heads), [":--"] * len(heads), *([markdown(value_cell(v, limit=400)) for v in row] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _csv(heads: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(heads)
    for row in rows:
        writer.writerow([plain(json.dumps(v)) if isinstance(v, dict | list) else _plain(v) for v in row])
    return out.getvalue()


def _plain(value: Any) -> Any:
    return plain(value) if isinstance(value, str) else value


def _json(heads: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    return json.dumps([dict(zip(heads, row, strict=True)) for row in rows], indent=2) + "\n"
