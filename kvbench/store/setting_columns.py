"""Every resolved setting as a column: the leaves of the model, engine, workload, kernel and SLO sections.

A column is named by the setting's last part where that is unique, else by the whole dotted key with `_`; a setting
that the engine and the kernel section share (`block_size`, `kv_dtype`, `attention`) is one column.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel

from kvbench.spec.engine import EngineSettings
from kvbench.spec.keys import column
from kvbench.spec.suite import KernelSettings, MeasureSettings, ModelSettings, SloSettings
from kvbench.spec.workload import WorkloadSettings
from kvbench.store.columns import Column, ColumnType

_SECTIONS: dict[str, type[BaseModel]] = {
    "model": ModelSettings,
    "engine": EngineSettings,
    "workload": WorkloadSettings,
    "kernel": KernelSettings,
    "slo": SloSettings,
}
_MEASURE: dict[str, ColumnType] = {"cache_state": "string", "steady_share": "float64"}
"""Of how a sample is taken, what a reader of its row must see."""
_UNITS = {"_s": "s", "memory": "B", "_tokens": "tokens", "context": "tokens", "block_size": "tokens"}


@cache
def setting_columns() -> dict[str, Column]:
    """Dotted key (`engine.block_size`) → its column."""
    leaves = {
        f"{section}.{path}": (column_type, text)
        for section, settings in _SECTIONS.items()
        for path, column_type, text in _leaves(settings)
    }
    for name, column_type in _MEASURE.items():
        leaves[f"measure.{name}"] = (column_type, _one_line(MeasureSettings.model_fields[name].description))
    return {
        key: Column(name, column_type, _unit(name, column_type), text)
        for key, (column_type, text) in leaves.items()
        for name in (_name(key),)
    }


def setting_row(sections: Mapping[str, BaseModel | Mapping[str, Any] | None]) -> dict[str, Any]:
    """Column → value for the given sections (`{"engine": EngineSettings(…), "model": …}`); lists become JSON text,
    a word in a numeric column (`auto`) becomes None."""
    row: dict[str, Any] = {}
    for key, found in setting_columns().items():
        section, *path = key.split(".")
        value: Any = sections.get(section)
        value = value.model_dump() if isinstance(value, BaseModel) else value
        for part in path:
            value = value.get(part) if isinstance(value, Mapping) else None
        if value is not None or found.name not in row:
            row[found.name] = as_cell(value, found.type)
    return row


def as_cell(value: Any, column_type: ColumnType) -> Any:
    """The value as its column can hold it."""
    if isinstance(value, list | tuple | dict):
        return json.dumps(value)
    if isinstance(value, str) and column_type != "string":
        return None
    if value is not None and column_type == "string":
        return str(value)
    return value


def _leaves(settings: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, ColumnType, str]]:
    for name, info in settings.model_fields.items():
        kind = _plain_type(info.annotation)
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from _leaves(kind, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", _column_type(kind), _one_line(info.description)


def _one_line(text: str | None) -> str:
    return " ".join((text or "").split())


def _plain_type(annotation: Any) -> Any:
    """Without `Annotated`, `| None` and `| "auto"`; a union of numbers is the wider one."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return _plain_type(get_args(annotation)[0])
    if origin in (Union, UnionType):
        parts = [_plain_type(part) for part in get_args(annotation) if part is not type(None)]
        numbers = [part for part in parts if part in (int, float)]
        return (float if float in numbers else int) if numbers else parts[0]
    return annotation


def _column_type(kind: Any) -> ColumnType:
    if kind is bool:
        return "bool"
    if kind is int:
        return "int64"
    if kind is float:
        return "float64"
    return "string"


def _name(key: str) -> str:
    """Objectives carry their section, because the metrics have the same names."""
    return key.replace(".", "_") if key.startswith("slo.") else column(key)


def _unit(name: str, column_type: ColumnType) -> str:
    if column_type not in ("int64", "float64"):
        return ""
    unit = next((unit for ending, unit in _UNITS.items() if name.endswith(ending)), "")
    return "" if unit == "tokens" and column_type == "float64" else unit
