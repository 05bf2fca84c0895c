"""The JSON Schema of a suite (draft 2020-12), for editors and for checking files without kvbench."""

from __future__ import annotations

from typing import Any

from kvbench.spec.keys import all_keys
from kvbench.spec.suite import Suite


def json_schema() -> dict[str, Any]:
    """Every key of a suite with its documentation, the keys and values of `axes` and the rules included.

    The schema checks each key on its own; combinations, duplicates and lengths of zip groups are `load_suite`'s.
    """
    schema: dict[str, Any] = _tidied(Suite.model_json_schema())
    properties, settings = schema["properties"], _setting_schemas()
    schema["$defs"] |= settings
    schema["$defs"]["axes"] = _keyed_tables({path: _axis(path) for path in settings})
    schema["$defs"]["rule"] = _keyed_tables({path: _value_or_values(path) for path in settings})
    properties["axes"] = {"$ref": "#/$defs/axes", "description": properties["axes"]["description"]}
    properties["zip"]["items"] = {"$ref": "#/$defs/axes", "minProperties": 1}
    properties["exclude"]["items"] = properties["only"]["items"] = {"$ref": "#/$defs/rule", "minProperties": 1}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "kvbench suite", **schema}


def _setting_schemas() -> dict[str, dict[str, Any]]:
    """One definition per setting that can be varied, without the default: an axis has none."""
    keys = (key for key in all_keys().values() if key.kind is not None)
    schemas = {key.path: _tidied(key.schema) | {"description": key.doc} for key in keys}
    return {
        path: {name: part for name, part in schema.items() if name != "default"} for path, schema in schemas.items()
    }


def _axis(path: str) -> dict[str, Any]:
    return {"type": "array", "minItems": 1, "items": {"$ref": f"#/$defs/{path}"}}


def _value_or_values(path: str) -> dict[str, Any]:
    return {"anyOf": [{"$ref": f"#/$defs/{path}"}, _axis(path)]}


def _keyed_tables(by_path: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """A table whose keys may be quoted (`"engine.block_size"`), dotted or nested; a setting that is a table itself (a
    length distribution) takes either its whole value or its parts."""
    inner: dict[str, dict[str, dict[str, Any]]] = {}
    for path, schema in by_path.items():
        first, dot, rest = path.partition(".")
        if dot:
            inner.setdefault(first, {})[rest] = schema
    properties = dict(by_path)
    for first, rest_of in inner.items():
        table = _keyed_tables(rest_of)
        properties[first] = {"anyOf": [properties[first], table]} if first in properties else table
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _tidied(node: Any) -> Any:
    """Without generated titles, and without null: TOML has none."""
    if isinstance(node, list):
        return [_tidied(item) for item in node]
    if not isinstance(node, dict):
        return node
    tidy = {key: _tidied(value) for key, value in node.items() if not _is_noise(key, value)}
    options = [option for option in tidy.get("anyOf", []) if option != {"type": "null"}]
    if len(options) == 1:
        del tidy["anyOf"]
        return options[0] | tidy
    return tidy | ({"anyOf": options} if options else {})


def _is_noise(key: str, value: Any) -> bool:
    return (key == "title" and isinstance(value, str)) or (
        key == "default" and (value is None or isinstance(value, dict))
    )
