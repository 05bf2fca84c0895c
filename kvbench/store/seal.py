"""Compaction of parts into the run's files: decided in one move, finished by whoever comes next.

1. New files are written to the staging folder; 2. `seal.json` names them, and from then on they are the truth;
3. they move into place; 4. the parts that are in them go; 5. `seal.json` goes. A kill before 2 changes nothing, a kill
after it is made good by `finish`, and readers see whole data all along.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from kvbench.store import files
from kvbench.store.manifest import build_manifest, workload_summary
from kvbench.store.parts import PARTS, ROW_GROUP, SUPERSEDED
from kvbench.store.state import JOURNAL, SEAL_STAGING, WORKLOADS, Journal, State, only, read_journal


def seal(state: State) -> None:
    """Write the run's files from everything that counts now; `state` is stale afterwards."""
    staging = state.path / SEAL_STAGING
    files.remove(staging)
    files.make_folder(staging)
    if state.dropped:
        _keep_dropped(state)
    digests = {"plan.json": files.digest_of(state.path / "plan.json")}
    digests["cases.parquet"] = _write(staging / "cases.parquet", [state.cases()], state.schema("cases"))
    for table in ("requests", "steps"):
        digests[f"{table}.parquet"] = _write(staging / f"{table}.parquet", state.pieces(table), state.schema(table))
    workload = pa.concat_tables([*state.workload_pieces(), state.schema("workload").empty_table()])
    digests["workload.parquet"] = _write(staging / "workload.parquet", [workload], state.schema("workload"))
    manifest = build_manifest(state.plan, rows=state.rows(), files=digests, workloads=workload_summary(workload))
    files.write_new(staging / "manifest.json", files.to_json(manifest))
    files.sync_folder(staging)
    journal = Journal([*(n for n in digests if n != "plan.json"), "manifest.json"], _absorbed(state))
    text = files.to_json({"files": journal.files, "absorbed": journal.absorbed})
    files.replace_file(state.path / JOURNAL, text, staging)
    finish(state.path)


def finish(path: Path) -> None:
    """Complete a seal that is decided; does nothing when there is none."""
    journal = read_journal(path)
    if journal is None:
        return
    for name in journal.files:
        if (path / SEAL_STAGING / name).exists():
            files.move(path / SEAL_STAGING / name, path / name)
    for name in journal.absorbed:
        files.remove(path / name)
    files.remove(path / JOURNAL)
    files.sync_folder(path)
    files.remove(path / SEAL_STAGING)


def is_needed(state: State) -> bool:
    """Whether sealing would change anything."""
    manifest = state.sealed_manifest()
    if manifest is None or state.parts or state.dropped or any((state.path / WORKLOADS).glob("*.parquet")):
        return True
    return bool(manifest["files"].get("plan.json") != files.digest_of(state.path / "plan.json"))


def _absorbed(state: State) -> list[str]:
    workloads = sorted((state.path / WORKLOADS).glob("*.parquet"))
    return [*(f"{PARTS}/{part.path.name}" for part in state.parts), *(f"{WORKLOADS}/{p.name}" for p in workloads)]


def _write(path: Path, pieces: Iterable[pa.Table], of: pa.Schema) -> str:
    """Stream tables into one file in row groups of at most `ROW_GROUP` rows; its sha256."""
    with files.HashedFile(path) as file:
        with pq.ParquetWriter(file, of, compression="zstd") as writer:
            for group in _row_groups(pieces, of):
                writer.write_table(group, row_group_size=ROW_GROUP)
        return file.seal()


def _row_groups(pieces: Iterable[pa.Table], of: pa.Schema) -> Iterable[pa.Table]:
    """Small pieces put together, so that a thousand short samples do not become a thousand row groups."""
    waiting: list[pa.Table] = []
    for piece in pieces:
        waiting.append(piece.replace_schema_metadata(of.metadata))
        if sum(table.num_rows for table in waiting) >= ROW_GROUP:
            yield pa.concat_tables(waiting)
            waiting = []
    if waiting:
        yield pa.concat_tables(waiting)


def _keep_dropped(state: State) -> None:
    """Sealed rows that are about to go are kept under `superseded/`, one folder for each seal that drops some."""
    parent = files.make_folder(state.path / SUPERSEDED)
    folder = parent / f"sealed.{sum(1 for _ in parent.glob('sealed.*')) + 1}"
    files.make_folder(folder)
    for table in ("cases", "requests", "steps"):
        file = state.open_sealed(table)
        if file is None:
            continue
        found = (only(pa.Table.from_batches([batch]), state.dropped) for batch in file.iter_batches())
        _write(folder / f"{table}.parquet", found, file.schema_arrow)
