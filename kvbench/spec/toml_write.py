"""Plain data as TOML text; the standard library only reads it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def to_toml(data: Mapping[str, Any]) -> str:
    """Scalars and lists first, then a `[table]` per section, inner tables inline; None is left out."""
    plain = {key: value for key, value in data.items() if not isinstance(value, Mapping) and not _is_tables(value)}
    tables = {key: value for key, value in data.items() if isinstance(value, Mapping)}
    lists = {key: value for key, value in data.items() if _is_tables(value)}
    parts = [_lines(plain)]
    parts += [f"[{_key(key)}]\n{_lines(table)}" for key, table in tables.items()]
    parts += [f"[[{_key(key)}]]\n{_lines(table)}" for key, entries in lists.items() for table in entries]
    return "\n".join(part for part in parts if part)


def toml_value(value: Any) -> str:
    """One value in TOML, tables inline."""
    if isinstance(value, Mapping):
        inner = ", ".join(f"{_key(key)} = {toml_value(v)}" for key, v in value.items() if v is not None)
        return f"{{ {inner} }}" if inner else "{}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(toml_value, value))}]"
    if isinstance(value, str):
        # TOML's basic strings are JSON's, except that DEL must be escaped too.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return json.dumps(value)


def _is_tables(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(entry, Mapping) for entry in value)


def _lines(table: Mapping[str, Any]) -> str:
    return "".join(f"{_key(key)} = {toml_value(value)}\n" for key, value in table.items() if value is not None)


def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else toml_value(key)
