"""Alibaba Cloud Bailian traces of Qwen serving: JSON lines with `chat_id`, `parent_chat_id`, `timestamp` (s),
`input_length`, `output_length`, `type`, `turn` and `hash_ids`.

An id names the tokens of a block of 16, whatever stands before it. A turn follows its parent, and never comes before
its own timestamp; one whose parent is not in the file begins a conversation.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kvbench.workload.importers.files import TraceFile
from kvbench.workload.importers.json_lines import hash_ids_from, json_records
from kvbench.workload.importers.rows import Link, MalformedError, Row, nanoseconds, shown, tokens_from

BLOCK_TOKENS = 16
_NS_PER_S = 1_000_000_000
_NO_PARENT = -1


def rows(file: TraceFile) -> Iterator[Row]:
    """The rows of a Bailian trace; a malformed one raises `MalformedError`."""
    conversations: dict[int, int] = {}
    for record in json_records(file):
        if "timestamp" not in record:
            raise MalformedError("has no 'timestamp'")
        chat, parent = _chat(record, "chat_id"), _chat(record, "parent_chat_id")
        known = parent in conversations
        conversations[chat] = conversations[parent] if known else chat
        yield Row(
            tokens_from(record, "input_length"),
            tokens_from(record, "output_length"),
            nanoseconds(record["timestamp"], _NS_PER_S, "timestamp"),
            hash_ids_from(record),
            BLOCK_TOKENS,
            Link(request_id=chat, after=parent if known else None, session_id=conversations[chat]),
        )


def _chat(record: dict[str, Any], key: str) -> int:
    value = record.get(key, _NO_PARENT if key == "parent_chat_id" else None)
    if type(value) is not int:
        problem = f"has no {key!r}" if key not in record else f"{key} is {shown(value)}, not a number"
        raise MalformedError(problem)
    return value
