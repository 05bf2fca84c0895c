"""BurstGPT traces (Wang et al. 2024): CSV with `Timestamp` (s), `Model`, `Request tokens`, `Response tokens`,
`Total tokens` and `Log Type`; the later releases have `Session ID` and `Elapsed time` as well.

Columns are found by name. Failed requests have 0 response tokens and are dropped, counted. A session id says which
requests belong together; what they share is not recorded, and each arrives at its own time.
"""

from __future__ import annotations

from collections.abc import Iterator

from kvbench.workload.importers.files import TraceFile
from kvbench.workload.importers.rows import Link, Row, nanoseconds, tokens_in
from kvbench.workload.importers.tables import CsvTable

_NS_PER_S = 1_000_000_000


def rows(file: TraceFile) -> Iterator[Row]:
    """The rows of a BurstGPT trace; a malformed one raises `MalformedError`."""
    table = CsvTable(file)
    time, asked, answered = table.columns(["Timestamp", "Request tokens", "Response tokens"])
    session = table.optional("Session ID")
    for record in table:
        name = None if session is None else record[session].strip() or None
        yield Row(
            tokens_in(record[asked], "Request tokens"),
            tokens_in(record[answered], "Response tokens"),
            nanoseconds(record[time], _NS_PER_S, "Timestamp"),
            link=None if name is None else Link(session_id=name),
        )
