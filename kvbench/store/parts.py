"""One finished sample on disk: a folder `parts/<case>-<sample>/` that appears whole, with digests, or not at all."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from kvbench.engine.telemetry import RequestRecord, StepRecord
from kvbench.errors import DataError
from kvbench.store import files
from kvbench.store.case_columns import MEASURED
from kvbench.store.schemas import fitted, record_table, schema
from kvbench.store.version import SCHEMA_VERSION, check_version_number

MAX_STEPS = 1_000_000
ROW_GROUP = 65_536
PARTS, STAGING, SUPERSEDED = "parts", ".staging", "superseded"
Key = tuple[str, int]


@dataclass(slots=True)
class Sample:
    """One repetition of a case as it was measured, whatever its end.

    `row` maps columns of `store.case_columns` (and axis columns) to values: status, settings, metrics, `warnings` as a
    list of {"name", "numbers"}. A status of ok without a single metric is stored as invalid (M10).
    """

    case_id: str
    sample: int
    fingerprint: str
    row: dict[str, Any]
    requests: Sequence[RequestRecord] | None = None
    steps: Sequence[StepRecord] | None = None
    workload_digest: str | None = None
    extra: dict[str, Any] = field(default_factory=dict)
    """Readings taken while the sample ran (clocks, memory …); JSON."""


@dataclass(frozen=True, slots=True)
class Part:
    """A sample read back: `row` is complete (keys, `finished_at`, warnings and extra as JSON text)."""

    path: Path
    row: dict[str, Any]

    @property
    def key(self) -> Key:
        return self.row["case_id"], self.row["sample"]

    def table(self, name: str) -> pa.Table | None:
        """`requests` or `steps` of the sample, None where it has none."""
        path = self.path / f"{name}.parquet"
        return pq.read_table(path) if path.exists() else None


def write_part(run_dir: Path, sample: Sample, *, max_steps: int = MAX_STEPS) -> Path:
    """Write the sample and rename it into place; an earlier part of the same key moves to `superseded/`.

    Above `max_steps` steps one in k is stored and the row's `steps_stride` says k. Raises `CannotRunError` on a full
    disk, `UsageError` on a closed one and `InternalError` for a value that does not fit its column; nothing
    half-written is ever visible.
    """
    target = run_dir / PARTS / folder_name(sample.case_id, sample.sample)
    staging = run_dir / STAGING / f"{target.name}.{os.getpid()}"
    with files.write_errors(run_dir):
        files.remove(staging)
        files.make_folder(staging)
        files.make_folder(target.parent)
        try:
            _fill(staging, sample, files.read_json(run_dir / "plan.json"), max_steps)
            files.sync_folder(staging)
            if target.exists():
                supersede(run_dir, target)
            files.move(staging, target)
        except Exception:
            _tidy(staging)
            raise
    return target


def read_part(path: Path) -> Part:
    """Read and check a part; `DataError` when a file is missing, damaged or not the one that was written."""
    meta = files.read_json(path / "part.json")
    check_version_number(meta.get("schema_version"), f"{path.name}/part.json")
    digest = meta.pop("digest", None)
    if digest != _meta_digest(meta) or folder_name(meta["case_id"], meta["sample"]) != path.name:
        raise DataError(f"{path / 'part.json'} does not match its digest", hint="the sample will be measured again")
    for name, expected in meta["files"].items():
        if not (path / name).exists() or files.digest_of(path / name) != expected:
            raise DataError(f"{path / name} does not match its digest", hint="the sample will be measured again")
    return Part(path, meta["row"])


def read_parts(run_dir: Path, ignore: frozenset[str] = frozenset()) -> tuple[list[Part], list[str]]:
    """All sound parts, oldest first, and a line about each one that is not."""
    found, problems = [], []
    folder = run_dir / PARTS
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        if path.name in ignore:
            continue
        try:
            found.append(read_part(path))
        except DataError as error:
            problems.append(error.message)
    return sorted(found, key=lambda part: (part.row["finished_at"], part.path.name)), problems


def supersede(run_dir: Path, path: Path) -> None:
    """Move a part out of the way, never over an older one of the same name."""
    folder = files.make_folder(run_dir / SUPERSEDED)
    files.move(path, next(p for p in _numbered(folder / path.name) if not p.exists()))


def folder_name(case_id: str, sample: int) -> str:
    """A part's folder within `parts/`."""
    return f"{case_id}-{sample}"


def axes_of(plan: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Axis column → its values over the plan's cases."""
    found: dict[str, list[Any]] = {}
    for case in plan["cases"]:
        for name, value in case.get("axes", {}).items():
            values = found.setdefault(name, [])
            if value not in values:
                values.append(value)
    return found


def now() -> str:
    """UTC, ISO 8601, microseconds: also the order of execution."""
    return datetime.now(UTC).isoformat(timespec="microseconds")


def clean(value: Any) -> Any:
    """The value as JSON can hold it: numpy scalars unwrapped, named tuples as objects, NaN and infinities None, any
    other object as text; bytes of a path that are no UTF-8 spelled out."""
    if hasattr(value, "item") and not isinstance(value, list | tuple | dict):
        value = value.item()
    if hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, Mapping):
        return {str(key): clean(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [clean(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if value is None or isinstance(value, int | float | bool):
        return value
    return str(value).encode("utf-8", "backslashreplace").decode()


def _fill(folder: Path, sample: Sample, plan: Mapping[str, Any], max_steps: int) -> None:
    run_id = plan["run_id"]
    row = _complete_row(sample, run_id)
    keys = {name: row.get(name) for name in ("run_id", "case_id", "sample", "clock", "attention_mode", "cache_dtype")}
    digests = {}
    if sample.requests is not None:
        of = schema("requests", run_id)
        digests["requests.parquet"] = _write(folder / "requests.parquet", record_table(sample.requests, keys, of))
    if sample.steps is not None:
        stride = max(1, -(-len(sample.steps) // max_steps))
        row["steps_stride"] = stride
        table = record_table(sample.steps[::stride], keys, schema("steps", run_id))
        digests["steps.parquet"] = _write(folder / "steps.parquet", table)
    row = fitted(row, schema("cases", run_id, axes_of(plan)))
    meta = {"schema_version": SCHEMA_VERSION, "case_id": sample.case_id, "sample": sample.sample, "row": row}
    meta |= {"files": digests}
    files.write_new(folder / "part.json", files.to_json({**meta, "digest": _meta_digest(meta)}))


def _complete_row(sample: Sample, run_id: str) -> dict[str, Any]:
    row = {name: clean(value) for name, value in sample.row.items()}
    lost = [n for n, v in sample.row.items() if row[n] is None and v is not None]
    warnings = list(row.get("warnings") or [])
    if lost:
        warnings.append({"name": "not_a_number", "numbers": dict.fromkeys(lost)})
    if row.get("status") == "ok" and not any(isinstance(row.get(n), int | float) for n in MEASURED):
        row |= {"status": "invalid", "error": "no metric came out of this sample"}
    return row | {
        "run_id": run_id,
        "case_id": sample.case_id,
        "sample": sample.sample,
        "fingerprint": sample.fingerprint,
        "finished_at": now(),
        "workload_digest": sample.workload_digest or row.get("workload_digest"),
        "warnings": files.to_text(warnings),
        "extra": files.to_text(clean(sample.extra)) if sample.extra else None,
    }


def _write(path: Path, table: pa.Table) -> str:
    with files.HashedFile(path) as file:
        pq.write_table(table, file, compression="zstd", row_group_size=ROW_GROUP)
        return file.seal()


def _meta_digest(meta: dict[str, Any]) -> str:
    return sha256(files.to_json(meta)).hexdigest()


def _numbered(path: Path) -> Iterator[Path]:
    number = 1
    while True:
        yield path.with_name(f"{path.name}.{number}")
        number += 1


def _tidy(staging: Path) -> None:
    try:
        files.remove(staging)
    except OSError:
        return  # the disk is in trouble already; the next resume clears the staging folder
