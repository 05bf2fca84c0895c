"""A run's folder: created, resumed and sealed by the sweep (`RunFolder`), read by everyone else (`open_run`)."""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kvbench import __version__
from kvbench.errors import UsageError
from kvbench.store import files, seal
from kvbench.store.manifest import build_manifest, check_shape, workload_summary
from kvbench.store.parts import PARTS, STAGING, SUPERSEDED, Key, Sample, clean, supersede, write_part
from kvbench.store.schemas import schema, table_of
from kvbench.store.state import WORKLOADS, State, part_path
from kvbench.store.version import SCHEMA_VERSION, check_version_number
from kvbench.workload.request import Request, Segment

if TYPE_CHECKING:
    from pandas import DataFrame

SEAL_EVERY = 256


class RunFolder:
    """A run that is being written; one process at a time.

    `plan` must hold `suite` (with `name`), `repetitions` and `cases`, a list of {"case_id", "fingerprint", "axes", …}
    in the order in which tables show them. Whatever else it holds is kept and, but for `environment`, counts as
    controlled.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = _lock(path)
        self.problems: list[str] = []
        """Parts that are damaged and will be measured again."""

    @classmethod
    def create(cls, out: Path, plan: Mapping[str, Any]) -> RunFolder:
        """A new folder `<suite>-<UTC>-<id>` under `out`, with its plan: it appears whole."""
        run_id = f"{plan['suite']['name']}-{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}"
        path, hidden = out / run_id, out / f".{run_id}"
        if not files.is_utf8(out):
            raise UsageError(f"{out} is no UTF-8 path: Parquet files cannot lie there", hint="choose another --out")
        with files.write_errors(out):
            files.make_folder(hidden / STAGING)
            files.write_new(hidden / "plan.json", files.to_json(_stamped(plan, run_id)))
            files.sync_folder(hidden)
            files.move(hidden, path)
        return cls(path)

    @classmethod
    def resume(cls, path: Path, plan: Mapping[str, Any]) -> RunFolder:
        """Take up an earlier run under a plan that may have changed: what a kill left is tidied, samples that the plan
        no longer has, or has with another fingerprint, move to `superseded/` (M01, M02, M04)."""
        old = State(path)
        folder = cls(path)
        with files.write_errors(path):
            seal.finish(path)
            files.remove(path / STAGING)
            folder._replace_plan(old.plan, _stamped(plan, old.run_id, old.plan.get("created_at")))
            state = State(path)
            for part in state.stale_parts:
                supersede(path, part.path)
            folder.problems = state.problems
            if state.dropped:
                seal.seal(state)
        return folder

    @property
    def run_id(self) -> str:
        return str(self.plan["run_id"])

    @property
    def plan(self) -> dict[str, Any]:
        return files.read_json(self.path / "plan.json")

    def finished(self) -> set[Key]:
        """(case_id, sample) of the samples that ended ok and count under the plan."""
        return {(row["case_id"], row["sample"]) for row in State(self.path).rows() if row["status"] == "ok"}

    def todo(self) -> list[Key]:
        """What is still to be measured: repetitions outermost, failed samples again (M03)."""
        plan, done = self.plan, self.finished()
        keys = [(case["case_id"], n) for n in range(plan["repetitions"]) for case in plan["cases"]]
        return [key for key in keys if key not in done]

    def write_workload(self, digest: str, requests: Sequence[Request]) -> None:
        """Keep the requests as they are run, once for every distinct workload."""
        path = self.path / WORKLOADS / f"{digest}.parquet"
        if path.exists() or digest in self._sealed_workloads():
            return
        of = schema("workload", self.run_id)
        table = table_of((_workload_row(r, self.run_id, digest) for r in requests), of)
        with files.write_errors(self.path):
            staged = files.make_folder(self.path / STAGING) / path.name
            files.make_folder(path.parent)
            with files.HashedFile(staged) as file:
                pq.write_table(table, file, compression="zstd", write_page_checksum=True)
                file.seal()
            files.move(staged, path)

    def add(self, sample: Sample, **options: Any) -> Path:
        """Write one finished sample, and seal when enough have come together."""
        path = write_part(self.path, sample, **options)
        self.seal_if_due()
        return path

    def has(self, key: Key) -> bool:
        """Whether a part of this sample is on disk: it may have been written just before its worker died."""
        return (self.path / part_path(key) / "part.json").exists()

    def seal_if_due(self) -> None:
        """Seal when `SEAL_EVERY` parts lie open, so that a long sweep does not leave thousands of folders."""
        folder = self.path / PARTS
        if folder.is_dir() and len(os.listdir(folder)) >= SEAL_EVERY:
            self.seal()

    def seal(self) -> None:
        """Compact what counts into the run's files and write the manifest; safe to repeat and to be killed in."""
        with files.write_errors(self.path):
            seal.finish(self.path)
            state = State(self.path)
            if seal.is_needed(state):
                seal.seal(state)
            for empty in (PARTS, WORKLOADS, STAGING):
                _remove_if_empty(self.path / empty)

    def close(self) -> None:
        """Let another process write."""
        os.close(self._lock)

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _replace_plan(self, old: dict[str, Any], new: dict[str, Any]) -> None:
        """Only for a plan that controls something else. The machine as earlier samples saw it stays on record."""
        if _controlled(old) == _controlled(new):
            return
        earlier, system = old.get("earlier_systems", []), _system(old)
        new["earlier_systems"] = earlier + [system] * (system != _system(new) and system not in earlier)
        kept = files.make_folder(self.path / SUPERSEDED)
        number = sum(1 for _ in kept.glob("plan.*.json")) + 1
        files.replace_file(kept / f"plan.{number}.json", files.to_json(old), self.path / STAGING)
        files.replace_file(self.path / "plan.json", files.to_json(new), self.path / STAGING)

    def _sealed_workloads(self) -> set[str]:
        file = State(self.path).open_sealed("workload")
        return set(file.read(["workload_digest"])["workload_digest"].to_pylist()) if file else set()


class Run:
    """A run that is read: sealed, unsealed or half of each. Tables are pandas DataFrames, loaded when first used."""

    def __init__(self, path: Path) -> None:
        self._state = State(path)
        self.path = path
        self.run_id = self._state.run_id
        self.plan: dict[str, Any] = self._state.plan
        self.problems: list[str] = self._state.problems
        """One line for every stored sample that is damaged and was left out."""

    @property
    def axes(self) -> dict[str, list[Any]]:
        """Axis column → its values, in the suite's order."""
        return self._state.axes

    @cached_property
    def case_rows(self) -> list[dict[str, Any]]:
        """`cases` as plain dicts (column → value, None where there is none), without pandas."""
        rows: list[dict[str, Any]] = self._state.cases().to_pylist()
        return rows

    def case_values(self, columns: Sequence[str]) -> list[dict[str, Any]]:
        """Keys, status and the named columns of every row, in no order; quick, and without pandas."""
        return self._state.selected(columns)

    @cached_property
    def cases(self) -> DataFrame:
        """One row per case × sample, in the plan's order."""
        return _frame(self._state.cases())

    @cached_property
    def requests(self) -> DataFrame:
        """One row per request and sample."""
        return _frame(self._joined("requests"))

    @cached_property
    def steps(self) -> DataFrame:
        """One row per engine step and sample (one in `steps_stride`)."""
        return _frame(self._joined("steps"))

    def sample_table(self, table: str, case_id: str, sample: int) -> pa.Table:
        """`requests` or `steps` of one sample, without the rest of the run in memory; no rows where it has none."""
        found = [self._state.schema(table).empty_table()]
        for piece in self._state.pieces(table):
            is_its = pc.and_(pc.equal(piece["case_id"], case_id), pc.equal(piece["sample"], sample))
            found.append(piece.filter(is_its))
        return pa.concat_tables([piece for at, piece in enumerate(found) if at == 0 or piece.num_rows])

    def first_steps(self, columns: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Case id → column → array [steps], of the first sample of the case that has any; without pandas."""
        import numpy as np

        table = self._state.columns_of("steps", columns)
        cases = table["case_id"].combine_chunks().dictionary_encode()
        codes, samples = np.asarray(cases.indices), table["sample"].to_numpy()
        if not len(cases):
            return {}
        first = np.full(len(cases.dictionary), np.iinfo(np.int64).max)
        np.minimum.at(first, codes, samples)
        rows = np.flatnonzero(samples == first[codes])
        rows = rows[np.argsort(codes[rows], kind="stable")]
        ends = np.searchsorted(codes[rows], np.arange(1, len(first)))
        arrays = {name: table[name].to_numpy() for name in columns}
        return {
            case_id: {name: array[mine] for name, array in arrays.items()}
            for case_id, mine in zip(cases.dictionary.to_pylist(), np.split(rows, ends), strict=True)
            if mine.size
        }

    def columns_of(self, table: str, columns: Sequence[str]) -> pa.Table:
        """Columns of `requests` or `steps` of all samples, with their keys, without pandas; null where a run that an
        older kvbench wrote lacks one."""
        return self._state.columns_of(table, columns)

    def of_samples(self, table: str, keys: Iterable[Key], columns: Sequence[str]) -> pa.Table:
        """Columns of `requests` or `steps` for few samples, without pandas: quick in a run of many."""
        return self._state.of_samples(table, set(keys), columns)

    @cached_property
    def workload(self) -> DataFrame:
        """The requests as they were run, one set for every distinct `workload_digest`."""
        return _frame(self._workload_table)

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """The sealed manifest; for a run that was never sealed, what it would say, without file digests."""
        sealed = self._state.sealed_manifest()
        if sealed is not None and not self._state.parts:
            return sealed
        workloads = workload_summary(self._workload_table)
        return build_manifest(self.plan, rows=self._state.rows(), workloads=workloads)

    @cached_property
    def lengths(self) -> dict[str, tuple[list[int], list[int]]]:
        """Workload digest → the prompts' and the outputs' lengths in tokens, in the order of the requests; without
        pandas."""
        table = self._workload_table.select(["workload_digest", "input_tokens", "output_tokens"])
        found: dict[str, tuple[list[int], list[int]]] = {}
        for digest, inputs, outputs in zip(*(column.to_pylist() for column in table.columns), strict=True):
            both = found.setdefault(digest, ([], []))
            both[0].append(inputs)
            both[1].append(outputs)
        return found

    def requests_of(self, digest: str) -> list[Request]:
        """The requests of one workload, ready to be served again."""
        table = self._workload_table
        rows = table.filter(pc.equal(table["workload_digest"], digest)).to_pylist()
        return [_request(row) for row in rows]

    @cached_property
    def _workload_table(self) -> pa.Table:
        nothing = pa.Table.from_batches([], self._state.schema("workload"))
        return pa.concat_tables([nothing, *self._state.workload_pieces()])

    def _joined(self, table: str) -> pa.Table:
        return pa.concat_tables([self._state.schema(table).empty_table(), *self._state.pieces(table)])


def open_run(path: str | Path) -> Run:
    """Open a run folder for reading. Raises `UsageError` for what is not one or is newer than this kvbench, and
    `DataError`, naming the file, for one that is damaged; the tables are checked when they are first used."""
    return Run(Path(path))


def read_manifest(path: str | Path) -> dict[str, Any]:
    """The manifest of a run folder, or in a `manifest.json` that lies anywhere. Raises as `open_run` does."""
    path = Path(path)
    if not path.is_file():
        return open_run(path).manifest
    found = files.read_json(path)
    check_version_number(found.get("schema_version"), str(path))
    check_shape(found, str(path))
    return found


def _frame(table: pa.Table) -> DataFrame:
    import pandas as pd

    nullable = {pa.int64(): pd.Int64Dtype(), pa.uint64(): pd.UInt64Dtype(), pa.bool_(): pd.BooleanDtype()}
    frame: DataFrame = table.to_pandas(types_mapper=nullable.get)
    return frame


def _stamped(plan: Mapping[str, Any], run_id: str, created_at: str | None = None) -> dict[str, Any]:
    stamp = created_at or datetime.now(UTC).isoformat(timespec="seconds")
    ours = {"schema_version": SCHEMA_VERSION, "run_id": run_id, "created_at": stamp, "kvbench_version": __version__}
    stamped: dict[str, Any] = clean({**plan, **ours})
    return stamped


def _controlled(plan: Mapping[str, Any]) -> dict[str, Any]:
    moving = ("environment", "earlier_systems", "argv", "created_at")
    return {**{k: v for k, v in plan.items() if k not in moving}, "system": _system(plan)}


def _system(plan: Mapping[str, Any]) -> Any:
    return plan.get("environment", {}).get("controlled", {})


def _workload_row(request: Request, run_id: str, digest: str) -> dict[str, Any]:
    return {
        "run_id": run_id,
        "workload_digest": digest,
        "request_id": request.request_id,
        "arrival_s": request.arrival_s,
        "input_tokens": request.input_tokens,
        "output_tokens": request.output_tokens,
        "prompt": [_segment_row(s) for s in request.prompt],
        "output": None if request.output is None else [_segment_row(s) for s in request.output],
        "after": request.after,
        "think_time_s": request.think_time_s,
        "session_id": request.session_id,
        "salt": request.salt,
        "priority": request.priority,
    }


def _segment_row(segment: Segment) -> dict[str, int]:
    return {"stream": segment.stream, "start": segment.start, "length": segment.length}


def _request(row: dict[str, Any]) -> Request:
    prompt = tuple(Segment(**s) for s in row["prompt"])
    output = None if row["output"] is None else tuple(Segment(**s) for s in row["output"])
    kept = {k: v for k, v in row.items() if k not in ("run_id", "workload_digest", "prompt", "output")}
    return Request(prompt=prompt, output=output, **{**kept, "priority": kept.get("priority") or 0})


def _lock(path: Path) -> int:
    with files.write_errors(path):
        handle = os.open(path / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        raise UsageError(f"another kvbench is writing {path}", hint="wait for it, or start a new run") from None
    return handle


def _remove_if_empty(folder: Path) -> None:
    if folder.is_dir() and not os.listdir(folder):
        folder.rmdir()
