"""CSV traces: columns by name, in any order, unknown ones ignored."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence

from kvbench.workload.importers.files import TraceFile
from kvbench.workload.importers.rows import MalformedError, shown


class CsvTable:
    """The rows under a header."""

    def __init__(self, file: TraceFile) -> None:
        self._file = file
        self._records = csv.reader(file.lines(), strict=True)
        self.header = [name.strip() for name in self._next_record()]

    def columns(self, names: Sequence[str]) -> list[int]:
        """Positions of the named columns; all missing ones are named at once."""
        missing = [name for name in names if name not in self.header]
        if missing:
            found = ", ".join(shown(name) for name in self.header[:12])
            raise MalformedError(f"the header lacks {', '.join(missing)}; found {found}")
        doubled = [name for name in names if self.header.count(name) > 1]
        if doubled:
            raise MalformedError(f"the header has {', '.join(doubled)} more than once")
        return [self.header.index(name) for name in names]

    def optional(self, name: str) -> int | None:
        """Position of a column that may be absent."""
        return self.columns([name])[0] if name in self.header else None

    def __iter__(self) -> Iterator[list[str]]:
        width = len(self.header)
        while record := self._next_record():
            if len(record) != width:
                raise MalformedError(f"{len(record)} fields where the header has {width}")
            yield record

    def _next_record(self) -> list[str]:
        """The next record that is not blank; empty at the end."""
        try:
            for record in self._records:
                if record:
                    return record
        except csv.Error as error:
            raise MalformedError(f"not CSV: {error}") from error
        return []
