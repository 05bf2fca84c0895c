"""Validation errors in people's words: one problem per key, with what was expected and what stands there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from kvbench.spec.fields import MAX_COUNT, Settings
from kvbench.spec.keys import candidates, model_schema, sub_settings
from kvbench.spec.problems import Problem, did_you_mean
from kvbench.spec.words import choices, expectation, shown


@dataclass
class _Place:
    """Where an error's location leads: union branches are no keys and are left out."""

    parts: list[str]
    owner: type[Settings] | None
    schema: dict[str, Any]


def problems_of(error: ValidationError, model: type[Settings], prefix: str = "") -> list[Problem]:
    """Every fault once, under its dotted key."""
    found: dict[str, Problem] = {}
    for detail in error.errors(include_url=False):
        for problem in _problems(detail, model, prefix):
            found.setdefault(f"{problem.key} {problem.text}" if detail["type"] == "conflict" else problem.key, problem)
    return list(found.values())


def _problems(detail: ErrorDetails, model: type[Settings], prefix: str) -> Iterator[Problem]:
    place = _walk(detail["loc"], model)
    if detail["type"] == "conflict":
        for field, text in detail["ctx"]["conflicts"]:
            yield Problem(_join(prefix, *place.parts, field), text)
    else:
        yield Problem(_join(prefix, *place.parts), _text(detail, place))


def _walk(loc: Iterable[int | str], model: type[Settings]) -> _Place:
    place = _Place([], model, {"type": "object"})
    inside: type[Settings] | None = model
    for item in loc:
        if isinstance(item, int):
            place.parts.append(str(item))
            place.schema = _items(place.schema)
        elif inside is not None and item in inside.model_fields:
            place.parts.append(item)
            place.owner, place.schema = inside, model_schema(inside)["properties"][item]
            inside = _table(inside.model_fields[item])
        elif inside is not None:
            place.parts.append(item)
            place.owner, inside = inside, None
    return place


def _items(schema: dict[str, Any]) -> dict[str, Any]:
    options = [schema, *schema.get("anyOf", [])]
    return next((option["items"] for option in options if "items" in option), {})


def _table(field: FieldInfo) -> type[Settings] | None:
    """The model behind a field, optional or not."""
    found = sub_settings(field)
    options = getattr(field.annotation, "__args__", ())
    return found or next((kind for kind in options if isinstance(kind, type) and issubclass(kind, Settings)), None)


def _text(detail: ErrorDetails, place: _Place) -> str:
    kind, value = detail["type"], detail["input"]
    if kind == "extra_forbidden":
        return _unknown(place)
    if kind == "value_error":
        return str(detail["ctx"]["error"])
    if kind == "missing":
        return f"missing; expected {expectation(place.schema)}"
    hint = did_you_mean(value, choices(place.schema)) if isinstance(value, str) else ""
    is_huge = isinstance(value, int) and value > MAX_COUNT
    expected = expectation(place.schema, brief=not is_huge)
    return f"expected {expected}, got {shown(value)}{hint or _quoted_number(value, place.schema)}"


def _unknown(place: _Place) -> str:
    name = place.parts[-1]
    known = list(place.owner.model_fields) if place.owner else []
    elsewhere = [key.path for key in candidates(name)]
    if "." in name:
        return f"unknown key: quoted, its dots are part of the name; write {name} = … without quotes"
    if elsewhere:
        return f'unknown key here; did you mean "{elsewhere[0]}"?'
    if close := did_you_mean(name, known):
        return f"unknown key{close}"
    return f"unknown key; expected one of {', '.join(known)}"


def _quoted_number(value: Any, schema: dict[str, Any]) -> str:
    kinds = {schema.get("type"), *(option.get("type") for option in schema.get("anyOf", []))}
    is_number = isinstance(value, str) and value.replace(".", "", 1).replace("-", "", 1).isdecimal()
    return " (write it without quotes)" if is_number and kinds & {"integer", "number"} else ""


def _join(*parts: str) -> str:
    return ".".join(part for part in parts if part)
