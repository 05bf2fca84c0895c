"""Vidur and Sarathi length traces: CSV with `num_prefill_tokens` and `num_decode_tokens`.

Most record no arrivals; a column `arrived_at` (seconds) is read where there is one.
"""

from __future__ import annotations

from collections.abc import Iterator

from kvbench.workload.importers.files import TraceFile
from kvbench.workload.importers.rows import Row, nanoseconds, tokens_in
from kvbench.workload.importers.tables import CsvTable

_NS_PER_S = 1_000_000_000


def rows(file: TraceFile) -> Iterator[Row]:
    """The rows of a Vidur trace; a malformed one raises `MalformedError`."""
    table = CsvTable(file)
    prefill, decode = table.columns(["num_prefill_tokens", "num_decode_tokens"])
    arrived = table.optional("arrived_at")
    for record in table:
        yield Row(
            tokens_in(record[prefill], "num_prefill_tokens"),
            tokens_in(record[decode], "num_decode_tokens"),
            None if arrived is None else nanoseconds(record[arrived], _NS_PER_S, "arrived_at"),
        )
