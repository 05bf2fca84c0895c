"""Tables of what was tuned: times in scaled units, configurations in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kvbench import tabulate
from kvbench.cli.output import Table, emit
from kvbench.units import format_seconds

_LONGEST_CELL = 120


def emit_tuned(form: str, columns: Sequence[str], records: Sequence[Mapping[str, Any]]) -> None:
    """`emit` for one list of raw values; columns that end in `_s` are seconds."""
    values = [[record.get(name) for name in columns] for record in records]
    cells = [[_cell(name, value) for name, value in zip(columns, row, strict=True)] for row in values]
    table = Table("", columns, cells, tabulate.number_columns(values))
    emit(form, tables=[table], columns=columns, records=records)


def _cell(name: str, value: Any) -> str:
    from kvbench.tune.progress import spelled

    if isinstance(value, float):
        return format_seconds(value) if name.endswith("_s") else f"{value:.4g}"
    if isinstance(value, dict):
        return spelled(value)
    if isinstance(value, list):
        value = "; ".join(spelled(item) if isinstance(item, dict) else str(item) for item in value)
    return tabulate.value_cell(value, limit=_LONGEST_CELL)
