"""`kvbench compare`: runs side by side."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from kvbench.cli.comparing import differences_table, refusal_shown, vary_option
from kvbench.cli.output import Table, emit, format_option

if TYPE_CHECKING:
    from kvbench.report.side_by_side import Comparison


@click.command()
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="RUN RUN…")
@click.option("--metric", "metrics", multiple=True, help="This metric instead of the usual ones; repeatable.")
@vary_option
@format_option
def compare(runs: tuple[Path, ...], metrics: tuple[str, ...], vary: tuple[str, ...], form: str) -> None:
    """Two or more runs side by side on the cases that they share; changes are against the first.

    A change is called better or worse only where its 95 % interval says so. Runs that differ in more than --vary are
    refused, exit 4, with the table of fields; runs without a common case exit 5.

    \b
    Examples:
      kvbench compare results/before results/after
      kvbench compare results/fp32 results/int8 --vary kv_dtype --metric output_tokens_per_s
    """
    from kvbench.report.side_by_side import compare_folders

    with refusal_shown(form):
        found = compare_folders(runs, metrics, vary)
    show_comparison(found, form)


def show_comparison(found: Comparison, form: str) -> None:
    """Print a comparison in one of the four formats."""
    from kvbench.report.side_by_side import RECORD, cells, document, notes, records

    heads, rows = cells(found)
    right = frozenset(at for at, head in enumerate(heads) if at > 1 and head != "so")
    tables = [Table("", heads, rows, right)]
    for letter in found.letters[1:]:
        differ = [difference for name, difference in found.differences if name == letter]
        if differ:
            tables.append(differences_table(f"{letter} differs from A in", differ))
    tables.append(Table("", ["note"], [[note] for note in notes(found)]))
    emit(form, tables=tables, columns=RECORD, records=records(found), document=document(found))
