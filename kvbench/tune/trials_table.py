"""All trials of a tuning as one Parquet file: a row each, with unit and meaning of every column in the file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from kvbench.store.files import write_errors
from kvbench.tune.trial import STATUSES, Trial

SCHEMA_VERSION = 1
_TEXT, _REAL, _WHOLE = pa.string(), pa.float64(), pa.int64()
COLUMNS: dict[str, tuple[pa.DataType, str, str]] = {
    "kernel": (_TEXT, "", "The kernel that was tuned."),
    "shape": (_TEXT, "", "JSON: the shape of the work."),
    "trial": (_WHOLE, "", "Number of the trial within its shape, from 0."),
    "configuration": (_TEXT, "", "JSON: the configuration."),
    "status": (_TEXT, "", f"{', '.join(STATUSES)}: the invalidity values of the T4 format."),
    "error": (_TEXT, "", "What went wrong, where something did."),
    "time_s": (_REAL, "s", "Median of the timed calls; missing unless the status is correct."),
    "times_s": (pa.list_(_REAL), "s", "Every timed call."),
    "is_dropped": (pa.bool_(), "", "Timing ended early, because the configuration was slower than the best."),
    "bytes_per_s": (_REAL, "B/s", "Bytes that a call has to move, over time_s."),
    "error_rel": (_REAL, "", "Worst row against the reference: size of the difference over size of the row."),
    "compile_s": (_REAL, "s", "Compilation, or loading from a cache."),
    "check_s": (_REAL, "s", "Check against the reference."),
    "trial_s": (_REAL, "s", "The whole trial."),
    "finished_at": (_TEXT, "", "When, UTC."),
}


def write_trials(path: Path, rows: Sequence[Mapping[str, Any]], facts: Mapping[str, Any]) -> None:
    """`rows` as `trial_row` makes them; `facts` go into the file's metadata as JSON."""
    fields = [
        pa.field(name, kind, metadata={"unit": unit, "description": text})
        for name, (kind, unit, text) in COLUMNS.items()
    ]
    metadata = {
        b"kvbench.tune_schema_version": str(SCHEMA_VERSION).encode(),
        b"kvbench.tune": json.dumps(facts).encode(),
    }
    table = pa.Table.from_pylist([dict(row) for row in rows], schema=pa.schema(fields, metadata=metadata))
    temporary = path.with_name(f".{path.name}")
    with write_errors(path):
        pq.write_table(table, temporary, compression="zstd")
        temporary.replace(path)


def trial_row(
    trial: Trial, *, kernel: str, shape: Mapping[str, Any], number: int, bytes_per_call: int
) -> dict[str, Any]:
    """One trial as a row; `number` counts trials of the shape."""
    return {
        "kernel": kernel,
        "shape": json.dumps(shape),
        "trial": number,
        "configuration": json.dumps(trial.configuration),
        "status": trial.status,
        "error": trial.error,
        "time_s": trial.time_s,
        "times_s": trial.times,
        "is_dropped": trial.is_dropped,
        "bytes_per_s": bytes_per_call / trial.time_s if trial.time_s and bytes_per_call else None,
        "error_rel": trial.error_rel,
        "compile_s": trial.compile_s,
        "check_s": trial.check_s,
        "trial_s": trial.trial_s,
        "finished_at": trial.finished_at,
    }
