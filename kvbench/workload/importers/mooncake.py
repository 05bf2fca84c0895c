"""Mooncake traces: JSON lines with `timestamp` (ms), `input_length`, `output_length` and `hash_ids`.

An id names a block of 512 tokens *and everything before it*, so equal ids mean equal prefixes.
"""

from __future__ import annotations

from collections.abc import Iterator

from kvbench.workload.importers.files import TraceFile
from kvbench.workload.importers.json_lines import hash_ids_from, json_records
from kvbench.workload.importers.rows import MalformedError, Row, nanoseconds, tokens_from

BLOCK_TOKENS = 512
_NS_PER_MS = 1_000_000


def rows(file: TraceFile) -> Iterator[Row]:
    """The rows of a Mooncake trace; a malformed one raises `MalformedError`."""
    for record in json_records(file):
        if "timestamp" not in record:
            raise MalformedError("has no 'timestamp'")
        yield Row(
            tokens_from(record, "input_length"),
            tokens_from(record, "output_length"),
            nanoseconds(record["timestamp"], _NS_PER_MS, "timestamp"),
            hash_ids_from(record),
            BLOCK_TOKENS,
        )
