"""A field's JSON Schema in words: one text for error messages and for the docs."""

from __future__ import annotations

import json
from typing import Any

from kvbench.spec.fields import MAX_BYTES, MAX_COUNT

_NOUNS = {
    "integer": "a whole number",
    "number": "a number",
    "string": "text",
    "object": "a table",
    "boolean": "true or false",
}
_TECHNICAL_LIMITS = (MAX_COUNT, MAX_BYTES, 2**63)


def expectation(schema: dict[str, Any], *, brief: bool = False) -> str:
    """`a whole number from 1 to 256`; `brief` leaves out limits that only keep integers in range."""
    if "$comment" in schema:
        return str(schema["$comment"])
    if "anyOf" in schema:
        kinds = [kind for kind in schema["anyOf"] if kind.get("type") != "null"]
        return " or ".join(expectation(kind, brief=brief) for kind in kinds)
    if "enum" in schema:
        return f"one of {', '.join(map(str, schema['enum']))}"
    if "const" in schema:
        return f'"{schema["const"]}"'
    if schema.get("type") == "array":
        return f"a list, each {expectation(schema.get('items', {}), brief=brief)}"
    noun = _NOUNS.get(schema.get("type", "object"), "a value")
    return f"{noun}{_range(schema, brief)}"


def _range(schema: dict[str, Any], brief: bool) -> str:
    low, above = schema.get("minimum"), schema.get("exclusiveMinimum")
    high, below = schema.get("maximum"), schema.get("exclusiveMaximum")
    if brief:
        high, below = (None if limit in _TECHNICAL_LIMITS else limit for limit in (high, below))
    if low is not None and high is not None:
        return f" from {low} to {high}"
    limits = (("of at least", low), ("above", above), ("at most", high), ("below", below))
    said = [f"{word} {limit}" for word, limit in limits if limit is not None]
    return f" {' and '.join(said)}" if said else ""


def choices(schema: dict[str, Any]) -> list[str]:
    """The words that a field accepts: its enum, its constants."""
    found = [str(value) for value in schema.get("enum", [])]
    found += [str(schema["const"])] if "const" in schema else []
    for kind in schema.get("anyOf", []):
        found += choices(kind)
    return found


def shown(value: Any) -> str:
    """A value as the file has it, short enough for one line."""
    if isinstance(value, dict):
        return "a table"
    if isinstance(value, list):
        return "a list"
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):
        text = f"{value}"
    return text if len(text) <= 60 else f"{text[:57]}…"
