"""Reading a trace: format, limit, dropped rows, and the checks that all formats share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path

from kvbench.errors import UsageError
from kvbench.workload.importers.detect import FORMATS, detect_format
from kvbench.workload.importers.files import TraceFile
from kvbench.workload.importers.rows import MalformedError, Row, shown

LINKED = ("jsonl", "bailian")
"""Formats whose rows name each other"""
FOLLOWS_DROPPED = "follows a dropped request"


@dataclass(slots=True)
class Trace:
    """The usable rows of a file, in file order, and what became of the others."""

    path: str
    format: str
    sha256: str
    rows: list[Row] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    """Of each kept row, its number among all rows read, from 0: it names the row's private tokens."""
    follows: dict[int, int] = field(default_factory=dict)
    """Kept row → the kept row it comes after."""
    rows_read: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    block_tokens: int | None = None

    @property
    def has_arrivals(self) -> bool:
        """Whether every row that starts on its own says when."""
        return all(row.arrival_ns is not None or at in self.follows for at, row in enumerate(self.rows))


def read_trace(path: str | Path, name: str = "auto", limit: int | None = None) -> Trace:
    """The first `limit` usable rows. A malformed row is a `UsageError` with file and line; rows without tokens are
    dropped and counted."""
    file = TraceFile(path)
    name = detect_format(file) if name == "auto" else name
    trace = Trace(str(path), name, file.sha256())
    try:
        _keep_rows(trace, _rows_of(name, file), limit)
    except MalformedError as error:
        raise file.error(str(error)) from None
    if not trace.rows:
        raise UsageError(f"{path} has no usable row: {_why_empty(trace)}", hint="each row is a request with tokens")
    return trace


def _rows_of(name: str, file: TraceFile) -> Iterator[Row]:
    module, function = FORMATS[name].split(":")
    rows: Iterator[Row] = getattr(import_module(module), function)(file)
    return rows


def _keep_rows(trace: Trace, rows: Iterator[Row], limit: int | None) -> None:
    links = _Links(trace) if trace.format in LINKED else None
    for number, row in enumerate(rows):
        trace.rows_read += 1
        reason = _drop_reason(row)
        if links is not None:
            reason = links.place(row, number, reason)
        if reason is not None:
            trace.dropped[reason] += 1
            continue
        if row.hash_ids is not None:
            _check_blocks(trace, row, row.hash_ids, row.block_tokens or 1)
        trace.rows.append(row)
        trace.numbers.append(number)
        if len(trace.rows) == limit:
            break


def _drop_reason(row: Row) -> str | None:
    if row.input_tokens > 0 and (row.output_tokens is None or row.output_tokens > 0):
        return None
    if row.input_tokens < 0 or (row.output_tokens or 0) < 0:
        return "negative tokens"
    return "zero input tokens" if row.input_tokens == 0 else "zero output tokens"


def _check_blocks(trace: Trace, row: Row, hash_ids: list[int], block: int) -> None:
    """M51: as many ids as blocks, and one block size throughout."""
    wanted = -(-row.input_tokens // block)
    if len(hash_ids) != wanted:
        raise MalformedError(
            f"{len(hash_ids)} hash_ids where {row.input_tokens} tokens make {wanted} blocks of {block}"
        )
    if trace.block_tokens not in (None, block):
        raise MalformedError(f"block_tokens is {block} here and {trace.block_tokens} above")
    trace.block_tokens = block


class _Links:
    """Resolves `after` to rows above; a row without `request_id` is called by its number."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._places: dict[int | str, int | None] = {}
        """Name → kept row, None when it was dropped."""

    def place(self, row: Row, number: int, reason: str | None) -> str | None:
        """Take note of the row; the reason to drop it, where the row that it follows adds one."""
        name = number if row.link is None or row.link.request_id is None else row.link.request_id
        if name in self._places:
            raise MalformedError(f"request_id {shown(name)} is taken by a row above")
        if row.link is not None and row.link.after is not None:
            before = self._before(row.link.after)
            reason = FOLLOWS_DROPPED if before is None and reason is None else reason
            if before is not None and reason is None:
                self._trace.follows[len(self._trace.rows)] = before
        self._places[name] = len(self._trace.rows) if reason is None else None
        return reason

    def _before(self, after: int | str) -> int | None:
        if after not in self._places:
            raise MalformedError(f"after is {shown(after)}, but no row above has that request_id")
        return self._places[after]


def _why_empty(trace: Trace) -> str:
    if not trace.rows_read:
        return "nothing under the header"
    return ", ".join(f"{count} dropped for {reason}" for reason, count in sorted(trace.dropped.items()))
