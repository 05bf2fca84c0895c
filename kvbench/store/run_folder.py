"""A run's folder while it is written: created, resumed and sealed by the sweep. `run.py` reads it."""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from kvbench import __version__
from kvbench.errors import UsageError
from kvbench.store import files, seal
from kvbench.store.parts import PARTS, STAGING, SUPERSEDED, Key, Sample, clean, supersede, write_part
from kvbench.store.request_rows import workload_row
from kvbench.store.schemas import schema, table_of
from kvbench.store.state import WORKLOADS, State, part_path
from kvbench.store.version import SCHEMA_VERSION
from kvbench.workload.request import Request

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
        table = table_of((workload_row(r, self.run_id, digest) for r in requests), of)
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
