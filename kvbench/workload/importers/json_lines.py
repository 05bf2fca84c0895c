"""JSON-lines traces: one object per line, blank lines skipped."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from kvbench.workload.importers.files import TraceFile
from kvbench.workload.importers.rows import MalformedError, shown


def json_records(file: TraceFile) -> Iterator[dict[str, Any]]:
    """The objects of the file."""
    for line in file.lines():
        if line and not line.isspace():
            yield parse_object(line)


def parse_object(line: str) -> dict[str, Any]:
    """One line's object. Numbers of thousands of digits and nesting without end are malformed, not crashes."""
    try:
        value = json.loads(line)
    except RecursionError:
        raise MalformedError("nested too deeply") from None
    except ValueError as error:
        raise MalformedError(f"not JSON: {error}") from None
    if type(value) is not dict:
        raise MalformedError(f"{shown(value)} is not a JSON object; a trace has one object per line")
    return value


def hash_ids_from(record: dict[str, Any]) -> list[int]:
    """The list under `hash_ids`, all integers of any size and sign."""
    ids = record.get("hash_ids")
    if type(ids) is not list or not set(map(type, ids)) <= {int}:
        problem = "has no 'hash_ids'" if "hash_ids" not in record else "hash_ids is not a list of integers"
        raise MalformedError(problem)
    return ids
