"""Lengths and arrivals of a trace as whole columns: what `read.read_trace` reads, a million rows of CSV in a second.

`read_columns` takes a file only where it is certain to read it as the row-by-row readers do. Whatever is unusual
(quotes, two forms of time, a cell that is no number) makes it answer None, and the row-by-row reader reads it or says
what is wrong and where.
"""

from __future__ import annotations

import gzip
import zlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kvbench.workload.arrivals import MAX_NS
from kvbench.workload.importers.arrow_values import values_of
from kvbench.workload.importers.block_columns import have_their_blocks, parsed_blocks
from kvbench.workload.importers.detect import detect_format
from kvbench.workload.importers.files import TraceFile
from kvbench.workload.importers.mooncake import BLOCK_TOKENS
from kvbench.workload.lengths import MAX_TOKENS

if TYPE_CHECKING:
    from pathlib import Path

_NAMES: Mapping[str, tuple[str, str, str]] = {
    "azure": ("ContextTokens", "GeneratedTokens", "TIMESTAMP"),
    "burstgpt": ("Request tokens", "Response tokens", "Timestamp"),
    "vidur": ("num_prefill_tokens", "num_decode_tokens", "arrived_at"),
}
"""Format → the columns of inputs, outputs and arrivals"""
_WITHOUT_ARRIVALS = ("vidur",)
_BOM = b"\xef\xbb\xbf"
_READ_OTHERWISE = (b'"', b"0x", b"0X")
"""A quote may hide commas, and Arrow takes hexadecimal numbers, which the row reader refuses"""
_MOMENT = r"^\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d{1,9})?$"
_MOMENT_IN_ZONE = _MOMENT[:-1] + r"(Z|[+-]\d\d:?\d\d)$"
_A_DAY_NS = 86_400 * 10**9
_NS_PER_S = 1e9


@dataclass(frozen=True, slots=True)
class Blocks:
    """The hash ids of a trace's rows: row i has `ids[starts[i] : starts[i + 1]]`, one for every `tokens` tokens."""

    ids: NDArray[np.int64]
    starts: NDArray[np.int64]
    tokens: int


@dataclass(frozen=True, slots=True)
class Columns:
    """The usable rows of a trace, in file order, and what became of the others."""

    format: str
    sha256: str
    inputs: NDArray[np.int64]
    outputs: NDArray[np.int64]
    arrivals_ns: NDArray[np.int64] | None
    rows_read: int
    dropped: Counter[str] = field(default_factory=Counter)
    blocks: Blocks | None = None


def read_columns(path: str | Path, name: str = "auto", limit: int | None = None) -> Columns | None:
    """The first `limit` usable rows of a CSV or Mooncake trace, or None for the row-by-row reader to read it.

    Raises `UsageError` for a file that cannot be opened or whose first line is no trace's, as that reader does."""
    file = TraceFile(path)
    name = detect_format(file) if name == "auto" else name
    raw = _bytes_of(file) if name in (*_NAMES, "mooncake") else None
    text = None if raw is None else _plain_text(raw)
    if text is None:
        return None
    if name == "mooncake":
        return _mooncake(text, file, limit)
    wanted = _wanted(text, name)
    found = None if wanted is None else _parsed(text, wanted)
    return None if found is None else _usable(found, name, file, limit)


def _bytes_of(file: TraceFile) -> bytes | None:
    try:
        raw = file.path.read_bytes()
        return gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
    except (OSError, EOFError, zlib.error):
        return None


def _plain_text(raw: bytes) -> bytes | None:
    """The bytes without a byte-order mark, if they are ASCII lines without lone carriage returns."""
    text = raw.removeprefix(_BOM)
    is_plain = text.isascii() and text.count(b"\r") == text.count(b"\r\n") and b"\x00" not in text
    return text if is_plain else None


def _wanted(text: bytes, name: str) -> dict[str, str] | None:
    """Column → what it is, where the header has each wanted name exactly once, and no cell needs a closer look."""
    if any(sign in text for sign in _READ_OTHERWISE):
        return None
    header = text.lstrip(b"\r\n").split(b"\n", 1)[0].decode().rstrip("\r").split(",")
    inputs, outputs, arrivals = _NAMES[name]
    wanted = {inputs: "inputs", outputs: "outputs", arrivals: "arrivals"}
    if name in _WITHOUT_ARRIVALS and arrivals not in [column.strip() for column in header]:
        del wanted[arrivals]
    return wanted if all(header.count(column) == 1 for column in wanted) and len(set(header)) == len(header) else None


def _parsed(text: bytes, wanted: Mapping[str, str]) -> dict[str, NDArray[np.int64]] | None:
    import pyarrow as pa

    is_dated = "TIMESTAMP" in wanted
    try:
        found = _table(text, wanted, pa.int64(), is_dated) or _table(text, wanted, pa.string(), is_dated)
        if found is None:
            return None
        if is_dated:
            found["arrivals"] = _moments(found["arrivals"])
    except pa.ArrowInvalid:
        return None
    arrays = {what: values_of(column) for what, column in found.items()}
    return arrays if is_dated or "arrivals" not in arrays else _seconds_as_ns(arrays)


def _table(text: bytes, wanted: Mapping[str, str], tokens: Any, is_dated: bool) -> dict[str, Any] | None:
    """The wanted columns; token counts are parsed as whole numbers, or as text, which takes `374.0` and longer."""
    import pyarrow as pa
    from pyarrow import csv

    time = pa.string() if is_dated else pa.float64()
    types = {column: time if what == "arrivals" else tokens for column, what in wanted.items()}
    convert = csv.ConvertOptions(
        column_types=types, include_columns=list(wanted), null_values=[], strings_can_be_null=False, check_utf8=False
    )
    try:
        table = csv.read_csv(pa.BufferReader(text), convert_options=convert)
        found = {what: table[column] for column, what in wanted.items()}
        if tokens == pa.string():
            found |= {what: _whole(column) for what, column in found.items() if what != "arrivals"}
    except pa.ArrowInvalid:
        return None
    return found


def _whole(column: Any) -> Any:
    """Token counts written as `374`, `374.` or `374.0`; `ArrowInvalid` for all else."""
    import pyarrow as pa
    import pyarrow.compute as pc

    trimmed = pc.ascii_trim_whitespace(column)
    if not pc.all(pc.match_substring_regex(trimmed, r"^-?[0-9]{1,18}(\.0*)?$")).as_py():
        raise pa.ArrowInvalid("not a whole number")
    return pc.cast(pc.replace_substring_regex(trimmed, r"\.0*$", ""), pa.int64())


def _moments(column: Any) -> Any:
    """ISO dates and times as nanoseconds since 1970; `ArrowInvalid` for all else, and for zones on some rows only."""
    import pyarrow as pa
    import pyarrow.compute as pc

    for form, zone in ((_MOMENT, None), (_MOMENT_IN_ZONE, "UTC")):
        if pc.all(pc.match_substring_regex(column, form)).as_py():
            moments = pc.cast(column, pa.timestamp("ns", zone)).cast(pa.int64())
            if pc.all(pc.less(pc.abs(moments), MAX_NS - _A_DAY_NS)).as_py():
                return moments
    raise pa.ArrowInvalid("not one form of date and time, in this century")


def _seconds_as_ns(arrays: dict[str, Any]) -> dict[str, NDArray[np.int64]] | None:
    seconds = arrays["arrivals"]
    with np.errstate(over="ignore", invalid="ignore"):
        nanoseconds = np.rint(seconds * _NS_PER_S)
        if not bool((np.abs(nanoseconds) < MAX_NS).all()):
            return None
    return {**arrays, "arrivals": nanoseconds.astype(np.int64)}


def _mooncake(text: bytes, file: TraceFile, limit: int | None) -> Columns | None:
    found = parsed_blocks(text)
    if found is None:
        return None
    table, ids, starts = found
    columns = _usable(table, "mooncake", file, limit)
    rows = _kept(table, limit)
    if columns is None or not have_their_blocks(table["inputs"], starts, rows):
        return None
    counts = starts[rows + 1] - starts[rows]
    ends = np.cumsum(counts)
    places = np.arange(ends[-1]) + np.repeat(starts[rows] - (ends - counts), counts)
    return replace(columns, blocks=Blocks(ids[places], np.r_[0, ends], BLOCK_TOKENS))


def _kept(found: Mapping[str, NDArray[np.int64]], limit: int | None) -> NDArray[np.int64]:
    return np.flatnonzero((found["inputs"] > 0) & (found["outputs"] > 0))[:limit]


def _usable(found: Mapping[str, NDArray[np.int64]], name: str, file: TraceFile, limit: int | None) -> Columns | None:
    """Rows with tokens; as in `read`, what is negative or zero is dropped and counted, up to the last row taken."""
    inputs, outputs = found["inputs"], found["outputs"]
    if len(inputs) and max(inputs.max(), outputs.max()) > MAX_TOKENS:
        return None
    kept = _kept(found, limit)
    if not len(kept):
        return None
    rows = len(inputs) if limit is None or len(kept) < limit else int(kept[-1]) + 1
    head_in, head_out = inputs[:rows], outputs[:rows]
    negative = (head_in < 0) | (head_out < 0)
    counts = {
        "negative tokens": int(np.count_nonzero(negative)),
        "zero input tokens": int(np.count_nonzero(~negative & (head_in == 0))),
        "zero output tokens": int(np.count_nonzero(~negative & (head_in > 0) & (head_out == 0))),
    }
    arrivals = found["arrivals"][kept] if "arrivals" in found else None
    dropped = Counter({reason: count for reason, count in counts.items() if count})
    return Columns(name, file.sha256(), inputs[kept], outputs[kept], arrivals, rows, dropped)
