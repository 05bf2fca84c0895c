"""Azure LLM inference traces, 2023 and 2024: `TIMESTAMP,ContextTokens,GeneratedTokens`.

Timestamps look like `2023-11-16 18:15:46.6805900` (seven digits, UTC) or `2024-05-10 00:00:00.009930+00:00`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import lru_cache

from kvbench.workload.importers.files import TraceFile
from kvbench.workload.importers.rows import MalformedError, Row, shown, tokens_in
from kvbench.workload.importers.tables import CsvTable

_SECOND = re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d", re.ASCII)
_REST = re.compile(r"(?:\.(\d{1,9}))?\s?(?:(Z)|([+-])(\d\d):?(\d\d))?", re.ASCII)


def rows(file: TraceFile) -> Iterator[Row]:
    """The rows of an Azure trace; a malformed one raises `MalformedError`."""
    table = CsvTable(file)
    stamp, context, generated = table.columns(["TIMESTAMP", "ContextTokens", "GeneratedTokens"])
    for record in table:
        yield Row(
            tokens_in(record[context], "ContextTokens"),
            tokens_in(record[generated], "GeneratedTokens"),
            timestamp_ns(record[stamp].strip()),
        )


def timestamp_ns(text: str) -> int:
    """Nanoseconds since 1970, exact to the last digit."""
    fraction = text[20:]
    if text[19:20] == "." and len(fraction) < 10 and fraction.isascii() and fraction.isdigit():
        return _second_ns(text[:19]) + int(fraction.ljust(9, "0"))
    return _second_ns(text[:19]) + _rest_ns(text)


def _rest_ns(text: str) -> int:
    """What stands behind the seconds: an optional fraction and an optional time zone."""
    rest = _REST.fullmatch(text, 19)
    if rest is None:
        raise MalformedError(f"TIMESTAMP is {shown(text)}, not a date and time")
    fraction, _, sign, hours, minutes = rest.groups()
    time = int(fraction.ljust(9, "0")) if fraction else 0
    offset = (int(hours) * 60 + int(minutes)) * 60_000_000_000 if sign else 0
    return time - offset if sign == "+" else time + offset


@lru_cache(maxsize=1024)
def _second_ns(text: str) -> int:
    try:
        if _SECOND.fullmatch(text) is None:
            raise ValueError(text)
        moment = datetime.fromisoformat(text).replace(tzinfo=UTC)
    except ValueError:
        raise MalformedError(f"TIMESTAMP is {shown(text)}, not a date and time") from None
    nanoseconds = int(moment.timestamp()) * 1_000_000_000
    if abs(nanoseconds) >= 2**62:
        raise MalformedError(f"TIMESTAMP is {shown(text)}, more than a century away")
    return nanoseconds
