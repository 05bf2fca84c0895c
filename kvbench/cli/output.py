"""Tables and documents on stdout, in the four formats of every reading command."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import click

from kvbench.console import plain

FORMATS = ("table", "json", "csv", "md")
format_option = click.option(
    "--format", "form", type=click.Choice(FORMATS), default="table", show_default=True, help="How to print it."
)


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of text under column names; `numbers` are the columns that are aligned to the right."""

    title: str
    columns: tuple[str, ...]
    rows: Sequence[Sequence[str]]
    numbers: frozenset[int] = frozenset()
    footer: str = ""


def emit(form: str, *, document: Any, tables: Sequence[Table], records: Sequence[dict[str, Any]]) -> None:
    """Print to stdout: `tables` for people (table, md), `document` as JSON, `records` as CSV with one header."""
    if form == "json":
        click.echo(json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False))
    elif form == "csv":
        click.echo(_csv(records), nl=False)
    elif form == "md":
        click.echo("\n\n".join(_markdown(table) for table in tables))
    else:
        _rich(tables)


def _csv(records: Sequence[dict[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(records[0]) if records else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return text.getvalue()


def _markdown(table: Table) -> str:
    rule = ["---:" if i in table.numbers else "---" for i in range(len(table.columns))]
    lines = [table.columns, rule, *table.rows]
    body = "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines)
    parts = [f"**{_cell(table.title)}**", body, *([_cell(table.footer)] if table.footer else [])]
    return "\n\n".join(parts)


def _cell(text: str) -> str:
    return plain(text).replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ")


def _rich(tables: Sequence[Table]) -> None:
    import sys

    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

    out = Console(file=sys.stdout, highlight=False, width=None if sys.stdout.isatty() else 160)
    for n, table in enumerate(tables):
        shown = RichTable(title=Text(plain(table.title), style="bold"), title_justify="left", box=None, pad_edge=False)
        for i, column in enumerate(table.columns):
            shown.add_column(Text(column), justify="right" if i in table.numbers else "left", overflow="fold")
        for row in table.rows:
            shown.add_row(*(Text(plain(cell)) for cell in row))
        if n:
            out.print()
        out.print(shown)
        if table.footer:
            out.print(Text(plain(table.footer), style="dim"))
