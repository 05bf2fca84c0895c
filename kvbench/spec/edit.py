"""Small changes to a suite's plain content, by dotted key."""

from __future__ import annotations

from typing import Any


def set_axis(data: dict[str, Any], key: str, values: list[Any]) -> None:
    """Make the key an axis, in its old place if it was one; drop its fixed value and a zip group of it alone."""
    drop_fixed(data, key)
    data["zip"] = [group for group in data.get("zip", []) if key not in group]
    data["axes"] = {**data.get("axes", {}), key: values}


def set_fixed(data: dict[str, Any], key: str, value: Any) -> None:
    """Give the key one value, in tables that are made where they are missing."""
    *tables, last = key.split(".")
    inner = data
    for table in tables:
        inner = inner.setdefault(table, {})
    inner[last] = value


def drop_fixed(data: dict[str, Any], key: str) -> None:
    """Take the key out; nothing happens where it is not there."""
    *tables, last = key.split(".")
    inner: Any = data
    for table in tables:
        inner = inner.get(table) if isinstance(inner, dict) else None
    if isinstance(inner, dict):
        inner.pop(last, None)
