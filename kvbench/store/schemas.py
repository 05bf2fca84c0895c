"""Arrow schemas of the run's four tables, and rows in and out of them.

Every field carries `unit` and `description` in its metadata; the file carries the schema version and the run id.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from kvbench.errors import DataError, InternalError
from kvbench.store.case_columns import case_columns
from kvbench.store.columns import REQUEST_COLUMNS, STEP_COLUMNS, WORKLOAD_COLUMNS, Column, ColumnType
from kvbench.store.setting_columns import as_cell, setting_columns
from kvbench.store.version import SCHEMA_VERSION, check_version_number

TABLES = ("cases", "requests", "steps", "workload")
_VERSION_KEY, _RUN_KEY = b"kvbench.schema_version", b"kvbench.run_id"
_SEGMENT = pa.struct([("stream", pa.uint64()), ("start", pa.int64()), ("length", pa.int64())])
_TYPES: dict[ColumnType, pa.DataType] = {
    "string": pa.string(),
    "int64": pa.int64(),
    "uint64": pa.uint64(),
    "float64": pa.float64(),
    "bool": pa.bool_(),
    "floats": pa.list_(pa.float64()),
    "ints": pa.list_(pa.int64()),
    "segments": pa.list_(_SEGMENT),
}
Axes = Mapping[str, Sequence[Any]]


def schema(table: str, run_id: str, axes: Axes | None = None) -> pa.Schema:
    """Schema of `cases`, `requests`, `steps` or `workload`. `axes`: axis column → its values, for `cases`."""
    metadata = {_VERSION_KEY: str(SCHEMA_VERSION).encode(), _RUN_KEY: run_id.encode()}
    return pa.schema([field_of(column) for column in columns(table, axes)], metadata=metadata)


def columns(table: str, axes: Axes | None = None) -> tuple[Column, ...]:
    """The columns of a table, in order."""
    fixed = {"requests": REQUEST_COLUMNS, "steps": STEP_COLUMNS, "workload": WORKLOAD_COLUMNS}
    return fixed[table] if table in fixed else _with_axes(axes or {})


def table_of(rows: Iterable[Mapping[str, Any]], of: pa.Schema) -> pa.Table:
    """Rows (column → value, missing ones null) as a table; a value that does not fit its column is our bug."""
    rows = list(rows)
    known = set(of.names)
    for row in rows:
        for name in row.keys() - known:
            raise InternalError(f"column {name!r} is not in the schema", hint="add it to kvbench/store")
    return pa.table([_array([row.get(f.name) for row in rows], f) for f in of], schema=of)


def fitted(row: Mapping[str, Any], of: pa.Schema) -> dict[str, Any]:
    """A case row as its columns can hold it; a metric or a name that does not fit is our bug."""
    loose = {column.name for column in setting_columns().values()} | (set(of.names) - {c.name for c in case_columns()})
    types = {name: next(t for t, arrow in _TYPES.items() if arrow == of.field(name).type) for name in of.names}
    found = {name: as_cell(v, types[name]) if name in loose and name in types else v for name, v in row.items()}
    table_of([found], of)
    return found


def refitted(rows: Iterable[Mapping[str, Any]], of: pa.Schema) -> Iterator[dict[str, Any]]:
    """Stored rows under a schema whose settings may have other types since: an axis that lost its word (`none`, 16
    narrowed to 16) is numbers now, one that won a word is text."""
    names = frozenset(of.names)
    loose = {column.name for column in setting_columns().values()} | (
        names - {column.name for column in case_columns()}
    )
    types = [(name, of.field(name).type) for name in sorted(loose & names)]
    texts = [name for name, found in types if pa.types.is_string(found)]
    others = [(name, pa.types.is_boolean(found)) for name, found in types if not pa.types.is_string(found)]
    for row in rows:
        found = {name: value for name, value in row.items() if name in names}
        found |= {name: as_cell(found[name], "string") for name in texts if name in found}
        found |= {name: _parsed(found[name], flag) for name, flag in others if isinstance(found.get(name), str)}
        yield found


def _parsed(text: str, is_flag: bool) -> Any:
    try:
        found = json.loads(text.lower())
    except ValueError:
        return None
    return found if isinstance(found, bool) == is_flag and isinstance(found, int | float) else None


def record_table(records: Sequence[Any], keys: Mapping[str, Any], of: pa.Schema) -> pa.Table:
    """Dataclass records (their fields are columns) under the same `keys` in every row."""
    arrays = [
        _array([keys[f.name]] * len(records) if f.name in keys else [getattr(r, f.name) for r in records], f)
        for f in of
    ]
    return pa.table(arrays, schema=of)


def conform(found: pa.Table, to: pa.Schema) -> pa.Table:
    """The table with the schema's columns: those it lacks become null, others keep their place at the end."""
    arrays, fields = [], []
    for field in to:
        has = field.name in found.column_names
        arrays.append(found[field.name].cast(field.type) if has else pa.nulls(found.num_rows, field.type))
        fields.append(field)
    for name in found.column_names:
        if name not in to.names:
            arrays.append(found[name])
            fields.append(found.schema.field(name))
    return pa.table(arrays, schema=pa.schema(fields, metadata=to.metadata))


def check_version(found: pa.Schema, name: str) -> None:
    """`check_version_number` for an Arrow schema."""
    text = (found.metadata or {}).get(_VERSION_KEY)
    if text is None or not text.isdigit():
        raise DataError(
            f"{name} carries no kvbench schema version", hint="it was not written by kvbench, or is damaged"
        )
    check_version_number(int(text), name)


def _with_axes(axes: Axes) -> tuple[Column, ...]:
    """Case columns in which every axis has a column that can hold its values."""
    found = {column.name: column for column in case_columns()}
    for name, values in axes.items():
        usual = found.get(name)
        if usual is None or any(as_cell(v, usual.type) is None or isinstance(v, list | dict) for v in values):
            text = usual.description if usual else "Axis of this suite."
            found[name] = Column(name, _type_of(values), "", text)
    return tuple(found.values())


def _type_of(values: Sequence[Any]) -> ColumnType:
    if values and all(isinstance(v, bool) for v in values):
        return "bool"
    if not values or any(isinstance(v, bool) or not isinstance(v, int | float) for v in values):
        return "string"
    return "int64" if all(isinstance(v, int) for v in values) else "float64"


def field_of(column: Column) -> pa.Field:
    """A column's Arrow field, its unit and meaning in the metadata."""
    metadata = {"unit": column.unit, "description": column.description}
    return pa.field(column.name, _TYPES[column.type], metadata=metadata)


def _array(values: list[Any], field: pa.Field) -> pa.Array:
    try:
        return pa.array(values, field.type)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
        raise InternalError(f"column {field.name!r} of type {field.type}: {error}") from None
