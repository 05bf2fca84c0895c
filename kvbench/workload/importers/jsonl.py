"""Our own traces: JSON lines, documented key by key in `docs/workloads.md`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kvbench.workload.importers.files import TraceFile
from kvbench.workload.importers.json_lines import hash_ids_from, json_records
from kvbench.workload.importers.rows import Link, MalformedError, Row, nanoseconds, shown, tokens_from

MAX_PRIORITY = 1_000_000
_NS_PER_S = 1_000_000_000
_LINKS = ("request_id", "after", "think_time_s", "session_id", "salt", "priority")


def rows(file: TraceFile) -> Iterator[Row]:
    """The rows of a trace of ours; a malformed one raises `MalformedError`. null is the same as absent."""
    for found in json_records(file):
        record = {key: value for key, value in found.items() if value is not None}
        has_blocks = "hash_ids" in record
        yield Row(
            tokens_from(record, "input_tokens"),
            tokens_from(record, "output_tokens") if "output_tokens" in record else None,
            nanoseconds(record["arrival_s"], _NS_PER_S, "arrival_s") if "arrival_s" in record else None,
            hash_ids_from(record) if has_blocks else None,
            _block_tokens(record) if has_blocks else None,
            _link(record) if any(key in record for key in _LINKS) else None,
        )


def _block_tokens(record: dict[str, Any]) -> int:
    tokens = tokens_from(record, "block_tokens")
    if tokens < 1:
        raise MalformedError(f"block_tokens is {tokens}, not a number of tokens")
    return tokens


def _link(record: dict[str, Any]) -> Link:
    think_ns = nanoseconds(record.get("think_time_s", 0), _NS_PER_S, "think_time_s")
    if think_ns < 0:
        raise MalformedError(f"think_time_s is {shown(record['think_time_s'])}, a negative time")
    salt = record.get("salt")
    if not isinstance(salt, str | None):
        raise MalformedError(f"salt is {shown(salt)}, not a text")
    return Link(
        request_id=_name(record, "request_id"),
        after=_name(record, "after"),
        think_time_s=think_ns / _NS_PER_S,
        session_id=_name(record, "session_id"),
        salt=salt,
        priority=_priority(record),
    )


def _priority(record: dict[str, Any]) -> int | None:
    value = record.get("priority")
    if value is None:
        return None
    if type(value) is not int or not -MAX_PRIORITY <= value <= MAX_PRIORITY:
        raise MalformedError(f"priority is {shown(value)}, not a whole number from -{MAX_PRIORITY} to {MAX_PRIORITY}")
    return value


def _name(record: dict[str, Any], key: str) -> int | str | None:
    value = record.get(key)
    if type(value) not in (int, str, type(None)):
        raise MalformedError(f"{key} is {shown(value)}, neither a number nor a text")
    return value
