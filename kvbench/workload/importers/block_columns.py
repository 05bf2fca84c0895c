"""A Mooncake trace as whole columns, hash ids included: a million rows in seconds where row by row takes a minute.

As `columns`: what is unusual (numbers that are no whole numbers, two objects in a line, wrong counts of ids) is left to
the row-by-row reader, which reads it or says what is wrong.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvbench.workload.arrivals import MAX_NS
from kvbench.workload.importers.arrow_values import values_of
from kvbench.workload.importers.mooncake import BLOCK_TOKENS

_NS_PER_MS = 1_000_000
_EXACT = 2**53 // _NS_PER_MS
"""Milliseconds below which the float64 product is the whole number of nanoseconds"""
_LARGE_FLOAT = re.compile(rb'"timestamp"\s*:\s*-?\d+[.eE]')
_CHUNK_BYTES = 1 << 24

Found = tuple[dict[str, NDArray[np.int64]], NDArray[np.int64], NDArray[np.int64]]


def parsed_blocks(text: bytes) -> Found | None:
    """Columns `inputs`, `outputs` and `arrivals` (nanoseconds), all ids one after the other, and where each row's
    begin (`[rows + 1]`)."""
    import pyarrow as pa
    from pyarrow import json

    fields = (("input_length", pa.int64()), ("output_length", pa.int64()), ("timestamp", pa.float64()))
    schema = pa.schema([*fields, ("hash_ids", pa.list_(pa.int64()))])
    options = json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
    try:
        table = json.read_json(
            pa.BufferReader(text), parse_options=options, read_options=json.ReadOptions(block_size=_CHUNK_BYTES)
        ).combine_chunks()
    except pa.ArrowInvalid:
        return None
    has_nulls = any(column.null_count for column in table.columns)
    if has_nulls or not table.num_rows or table.num_rows != _objects_promised(text):
        return None
    arrivals = _nanoseconds(values_of(table["timestamp"]), text)
    lists = table["hash_ids"].combine_chunks()
    lists = lists.chunk(0) if isinstance(lists, pa.ChunkedArray) else lists
    if arrivals is None or lists.flatten().null_count:
        return None
    columns = {"inputs": values_of(table["input_length"]), "outputs": values_of(table["output_length"])}
    starts = values_of(lists.offsets).astype(np.int64)
    return {**columns, "arrivals": arrivals}, values_of(lists.flatten()), starts - starts[0]


def _objects_promised(text: bytes) -> int:
    """One a line that is not blank."""
    lines = text.splitlines()
    return len(lines) - sum(not line or line.isspace() for line in lines)


def have_their_blocks(inputs: NDArray[np.int64], starts: NDArray[np.int64], rows: NDArray[np.int64]) -> bool:
    """Whether each of these rows has as many ids as its prompt has blocks."""
    return bool((starts[rows + 1] - starts[rows] == -(-inputs[rows] // BLOCK_TOKENS)).all())


def _nanoseconds(milliseconds: Any, text: bytes) -> NDArray[np.int64] | None:
    """Rounded as the row-by-row reader rounds: whole numbers exactly, others as the float64 product."""
    if not bool(np.isfinite(milliseconds).all()) or bool((np.abs(milliseconds) >= MAX_NS // _NS_PER_MS).any()):
        return None
    if bool((np.abs(milliseconds) < _EXACT).all()):
        return np.asarray(np.rint(milliseconds * _NS_PER_MS), dtype=np.int64)
    if _LARGE_FLOAT.search(text) or bool((np.abs(milliseconds) >= 2**53).any()):
        return None
    return np.asarray(milliseconds.astype(np.int64) * _NS_PER_MS)
