"""Tables and documents on stdout, in the four formats of every reading command."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import click

from kvbench import tabulate

_LONGEST_CELL = 120
_COMMENT = "# "

format_option = click.option(
    "--format",
    "form",
    type=click.Choice(tabulate.FORMATS),
    default="table",
    show_default=True,
    help="table and md scale units for people; json and csv keep SI base units.",
)

CASE_NAMES = "by the front of its id, its label or words of it such as block_size=16"


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of text under column names; `numbers` are the columns that are aligned to the right."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    numbers: frozenset[int] = frozenset()
    footer: str = ""


def emit(
    form: str,
    *,
    tables: Sequence[Table],
    columns: Sequence[str],
    records: Sequence[Mapping[str, Any]],
    document: Any = None,
) -> None:
    """Print to stdout: `tables` for people (table, md), `records` under `columns` as CSV, `document`, or else the
    records, as JSON."""
    if form == "json":
        text = tabulate.as_json(records if document is None else document)
    elif form == "csv":
        text = tabulate.comma_separated(columns, [[record.get(name) for name in columns] for record in records])
    else:
        text = "\n\n".join(map(_markdown if form == "md" else _plain, tables))
    click.echo(text)


def emit_records(form: str, columns: Sequence[str], records: Sequence[Mapping[str, Any]], document: Any = None) -> None:
    """`emit` for an answer that is one list of raw values."""
    emit(form, tables=[_table_of(columns, records)], columns=columns, records=records, document=document)


def comment_table(title: str, columns: Sequence[str], records: Sequence[Mapping[str, Any]]) -> str:
    """The list as a table in which every line is a comment of TOML."""
    table = _plain(_table_of(columns, records), spare=len(_COMMENT))
    return "\n".join(f"{_COMMENT}{line}".rstrip() for line in (tabulate.one_line(title), "", *table.splitlines()))


def _table_of(columns: Sequence[str], records: Sequence[Mapping[str, Any]]) -> Table:
    values = [[record.get(name) for name in columns] for record in records]
    cells = [[tabulate.value_cell(value, limit=_LONGEST_CELL) for value in row] for row in values]
    return Table("", columns, cells, tabulate.number_columns(values))


def _markdown(table: Table) -> str:
    title, footer = map(tabulate.escape_markdown, (table.title, table.footer))
    parts = (f"**{title}**" if title else "", tabulate.markdown(table.columns, table.rows, right=table.numbers), footer)
    return "\n\n".join(filter(None, parts))


def _plain(table: Table, spare: int = 0) -> str:
    width = tabulate.stdout_width()
    width = width and max(width - spare, 1)
    body = tabulate.aligned(table.columns, table.rows, right=table.numbers, width=width)
    title, footer = map(tabulate.one_line, (table.title, table.footer))
    return "\n".join(filter(None, (title, body, textwrap.fill(footer, width) if width else footer)))
