"""What a run folder holds at this moment, sealed or not: the one view that readers and writers share.

A row counts when its case is in the plan with the same fingerprint. A part goes before a sealed row of the same key.
While `seal.json` exists, a seal is decided but not finished: its files are in the staging folder or already in place,
and the parts that it names are in them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kvbench.errors import DataError, UsageError
from kvbench.store import files
from kvbench.store.manifest import check_shape
from kvbench.store.parts import PARTS, STAGING, Key, axes_of, folder_name, read_parts
from kvbench.store.schemas import check_version, conform, refitted, schema, table_of
from kvbench.store.version import check_version_number

JOURNAL = "seal.json"
SEAL_STAGING = f"{STAGING}/seal"
WORKLOADS = "workloads"


@dataclass(slots=True)
class Journal:
    """A seal that is decided: the files it consists of and the parts and workloads that are now in them."""

    files: list[str]
    absorbed: list[str]


def _no_run(path: Path) -> UsageError:
    runs = sorted(path.glob("*/plan.json"), key=lambda plan: plan.stat().st_mtime)
    if runs:
        hint = f"it holds runs, the newest {runs[-1].parent}; kvbench ls {path} lists them"
        return UsageError(f"{path} is not a run folder: it has no plan.json", hint=hint)
    why = "it has no plan.json" if path.exists() else "there is nothing of that name"
    return UsageError(f"{path} is not a run folder: {why}", hint="kvbench ls lists the runs under results/")


class State:
    """The contents of a run folder; reads only."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if not (path / "plan.json").exists():
            raise _no_run(path)
        self.plan = files.read_json(path / "plan.json")
        check_version_number(self.plan.get("schema_version"), f"{path / 'plan.json'}")
        _check_plan(self.plan, path / "plan.json")
        self.run_id = str(self.plan["run_id"])
        self.journal = read_journal(path)
        absorbed = frozenset(Path(name).name for name in (self.journal.absorbed if self.journal else ()))
        found, self.problems = read_parts(path, absorbed)
        self.parts = [part for part in found if self.counts(part.row)]
        self.stale_parts = [part for part in found if not self.counts(part.row)]

    @cached_property
    def axes(self) -> dict[str, list[Any]]:
        """Axis column → its values over the plan's cases."""
        return axes_of(self.plan)

    @cached_property
    def fingerprints(self) -> dict[str, str]:
        return {case["case_id"]: case["fingerprint"] for case in self.plan["cases"]}

    def counts(self, row: dict[str, Any]) -> bool:
        """Whether the row belongs to the plan as it now stands (M02, M04)."""
        return bool(self.fingerprints.get(row["case_id"]) == row["fingerprint"])

    def schema(self, table: str) -> pa.Schema:
        return schema(table, self.run_id, self.axes)

    def sealed_path(self, name: str) -> Path | None:
        """Where a sealed file is now, None when the run was never sealed."""
        staged = self.path / SEAL_STAGING / name
        if self.journal and staged.exists():
            return staged
        return self.path / name if (self.path / "manifest.json").exists() or self.journal else None

    def sealed_manifest(self) -> dict[str, Any] | None:
        path = self.sealed_path("manifest.json")
        if path is None:
            return None
        manifest = files.read_json(path)
        check_version_number(manifest.get("schema_version"), str(path))
        check_shape(manifest, str(path))
        return manifest

    @cached_property
    def sealed_cases(self) -> list[dict[str, Any]]:
        """All rows of the sealed `cases.parquet`, those that no longer count included."""
        file = self.open_sealed("cases")
        return file.read().to_pylist() if file else []

    @cached_property
    def dropped(self) -> set[Key]:
        """Sealed samples that a part replaces or that the plan no longer has."""
        replaced = {part.key for part in self.parts}
        rows = ((row, (row["case_id"], row["sample"])) for row in self.sealed_cases)
        return {key for row, key in rows if key in replaced or not self.counts(row)}

    def rows(self) -> list[dict[str, Any]]:
        """Every row that counts, in the plan's order of cases, then by sample."""
        sealed = [row for row in self.sealed_cases if (row["case_id"], row["sample"]) not in self.dropped]
        place = {case_id: index for index, case_id in enumerate(self.fingerprints)}
        rows = [*sealed, *(part.row for part in self.parts)]
        return sorted(rows, key=lambda row: (place[row["case_id"]], row["sample"]))

    def selected(self, columns: Sequence[str]) -> list[dict[str, Any]]:
        """The rows that count, in no order, with their keys and these columns only: much quicker than `rows`."""
        names = ("case_id", "sample", "fingerprint", "status", *columns)
        file, replaced = self.open_sealed("cases"), {part.key for part in self.parts}
        found: list[dict[str, Any]] = []
        if file is not None:
            with _reading(self.path / "cases.parquet"):
                sealed = file.read(columns=[name for name in names if name in file.schema_arrow.names])
            found = [row for row in sealed.to_pylist() if (row["case_id"], row["sample"]) not in replaced]
        found = [row for row in found if self.counts(row)] + [part.row for part in self.parts]
        return [{name: row.get(name) for name in names} for row in found]

    def cases(self) -> pa.Table:
        of = self.schema("cases")
        return table_of(refitted(self.rows(), of), of)

    def pieces(self, table: str) -> Iterator[pa.Table]:
        """`requests` or `steps`, piece by piece: sealed row groups first, then part by part."""
        of = self.schema(table)
        file = self.open_sealed(table)
        for batch in file.iter_batches() if file else ():
            piece = without(pa.Table.from_batches([batch]), self.dropped)
            if piece.num_rows:
                yield conform(piece, of)
        for part in self.parts:
            found = part.table(table)
            if found is not None and found.num_rows:
                yield conform(found, of)

    def columns_of(self, table: str, columns: Sequence[str]) -> pa.Table:
        """`requests` or `steps` of the samples that count, these columns only, and the case and sample of each row."""
        names = [*dict.fromkeys(("case_id", "sample", *columns))]
        of = pa.schema([self.schema(table).field(name) for name in names])
        file, found = self.open_sealed(table), [pa.Table.from_batches([], of)]
        if file is not None:
            there = [name for name in names if name in file.schema_arrow.names]
            with _reading(self.path / f"{table}.parquet"):
                found.append(conform(without(file.read(columns=there), self.dropped), of))
        for part in self.parts:
            piece = part.table(table)
            if piece is not None:
                found.append(conform(piece.select([name for name in names if name in piece.column_names]), of))
        return pa.concat_tables(found)

    def of_samples(self, table: str, keys: set[Key], columns: Sequence[str]) -> pa.Table:
        """These columns of the rows of few samples of `requests` or `steps`: what is not asked for is not decoded."""
        names = [*dict.fromkeys(("case_id", "sample", *columns))]
        of = pa.schema([self.schema(table).field(name) for name in names])
        file, found = self.open_sealed(table), [of.empty_table()]
        if file is not None:
            there = [name for name in names if name in file.schema_arrow.names]
            with _reading(self.path / f"{table}.parquet"):
                for batch in file.iter_batches(columns=there):
                    piece = only(pa.Table.from_batches([batch]), keys - self.dropped)
                    found.append(conform(piece, of))
        for part in self.parts:
            piece = part.table(table) if part.key in keys else None
            if piece is not None:
                found.append(conform(piece.select([name for name in names if name in piece.column_names]), of))
        return pa.concat_tables(found)

    def workload_pieces(self) -> Iterator[pa.Table]:
        """The distinct workloads, one table each or several in one."""
        of, file, seen = self.schema("workload"), self.open_sealed("workload"), set()
        if file:
            sealed = conform(file.read(), of)
            seen = set(sealed["workload_digest"].unique().to_pylist())
            yield sealed
        folder = self.path / WORKLOADS
        for path in sorted(folder.glob("*.parquet")) if folder.is_dir() else ():
            if path.stem not in seen:
                yield conform(_read(path), of)

    def open_sealed(self, table: str) -> pq.ParquetFile | None:
        """A sealed table after its digest was checked; `DataError` naming the file when it is missing or damaged."""
        name = f"{table}.parquet"
        path, manifest = self.sealed_path(name), self.sealed_manifest()
        if path is None or manifest is None:
            return None
        if not path.exists():
            raise DataError(f"{path} is missing", hint="the run folder is not whole")
        if manifest["files"].get(name) != files.digest_of(path):
            raise DataError(f"{path} is not the file that the manifest names", hint="it was cut short or changed")
        return open_parquet(path)


def _check_plan(plan: dict[str, Any], path: Path) -> None:
    suite, cases = plan.get("suite"), plan.get("cases")
    sound = isinstance(suite, dict) and "name" in suite and isinstance(cases, list) and "run_id" in plan
    if not sound or not all(_is_case(case) for case in cases or ()):
        raise DataError(f"{path} lacks the suite, the cases or the run id", hint="the file is damaged")


def _is_case(case: Any) -> bool:
    if not isinstance(case, dict) or not {"case_id", "fingerprint"} <= case.keys():
        return False
    return isinstance(case.get("axes", {}), dict) and isinstance(case.get("kind", "engine"), str)


def read_journal(path: Path) -> Journal | None:
    """What a seal has yet to do; None when none was interrupted, `DataError` for a damaged journal."""
    if not (path / JOURNAL).exists():
        return None
    found = files.read_json(path / JOURNAL)
    lists = found.get("files"), found.get("absorbed")
    if not all(isinstance(names, list) and all(_is_inside(name) for name in names) for names in lists):
        raise DataError(f"{path / JOURNAL} is not what kvbench writes", hint="the file is damaged")
    return Journal(found["files"], found["absorbed"])


def _is_inside(name: Any) -> bool:
    """Whether a name from the journal is a plain relative path: it is going to be moved or removed."""
    return isinstance(name, str) and bool(name) and not Path(name).is_absolute() and ".." not in Path(name).parts


def open_parquet(path: Path) -> pq.ParquetFile:
    """A Parquet file of ours; `DataError` naming it when it cannot be read, `UsageError` when it is newer."""
    with _reading(path):
        file = pq.ParquetFile(path, page_checksum_verification=True)
        found = file.schema_arrow
    check_version(found, str(path))
    return file


def _read(path: Path) -> pa.Table:
    file = open_parquet(path)
    with _reading(path):
        return file.read()


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read: {error}", hint="the file is damaged or was cut short") from None


def without(table: pa.Table, keys: set[Key]) -> pa.Table:
    """The rows whose (case_id, sample) is not among the keys."""
    return table if not keys else table.filter(pc.invert(_among(table, keys)))


def only(table: pa.Table, keys: set[Key]) -> pa.Table:
    """The rows whose (case_id, sample) is among the keys."""
    return table.filter(_among(table, keys))


def part_path(key: Key) -> str:
    """A part's folder within the run's."""
    return f"{PARTS}/{folder_name(*key)}"


def _among(table: pa.Table, keys: set[Key]) -> Any:
    names = pc.binary_join_element_wise(table["case_id"], pc.cast(table["sample"], pa.string()), "-")
    return pc.is_in(names, value_set=pa.array([folder_name(*key) for key in keys], pa.string()))
