"""A dataclass back from the JSON that it was written to, each value checked against the type of its field."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

Record = TypeVar("Record")


def from_json(cls: type[Record], found: Any) -> Record:
    """`ValueError` that names the field for what `cls` does not have, lacks, or has with another type.

    Fields may be plain scalars, literals, optional, tuples and lists of one type, dicts by text, and dataclasses.
    """
    if not isinstance(found, dict):
        raise ValueError(f"{cls.__name__} is no object")
    hints = get_type_hints(cls)
    needed = {field.name for field in fields(cls) if field.default is MISSING and field.default_factory is MISSING}  # type: ignore[arg-type]
    strange = (found.keys() - hints.keys()) | (needed - found.keys())
    if strange:
        raise ValueError(f"{cls.__name__} has strange or missing fields: {', '.join(sorted(map(str, strange)))}")
    return cls(**{name: _value(hints[name], value, name) for name, value in found.items()})


def _value(hint: Any, value: Any, name: str) -> Any:
    origin, inner = get_origin(hint), get_args(hint)
    if isinstance(hint, type) and is_dataclass(hint):
        return from_json(hint, value)
    if origin in (Union, UnionType):
        return None if value is None and type(None) in inner else _value(inner[0], value, name)
    if origin is Literal and value in inner:
        return value
    if origin in (tuple, list) and isinstance(value, list):
        make: Callable[[Any], Any] = origin
        return make([_value(inner[0], item, name) for item in value])
    if origin is dict and isinstance(value, dict):
        return {key: _value(inner[1], item, name) for key, item in value.items()}
    if hint is float and type(value) is int:
        return float(value)
    if isinstance(hint, type) and type(value) is hint:
        return value
    raise ValueError(f"{name} cannot be {value!r}")
