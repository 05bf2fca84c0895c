"""The runs under a folder at a glance: their JSON files and nothing else, so that hundreds are quick to list.

Digests are not checked here; `open_run` does that.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from kvbench.errors import KvbenchError, UsageError
from kvbench.store.files import read_json
from kvbench.store.version import check_version_number

State = Literal["finished", "unfinished", "running", "damaged"]
SORTS = ("when", "suite", "duration", "size")
_RUN_NAME = re.compile(r".+-\d{8}T\d{6}Z-[0-9a-f]{6}")
_SEALED = ("cases", "requests", "steps", "workload")


@dataclass(slots=True)
class RunEntry:
    """One run. What a damaged one no longer says is None, and `note` says why."""

    run_id: str
    path: Path
    state: State
    note: str = ""
    suite: str | None = None
    created_at: str | None = None
    """UTC, ISO 8601."""
    device: str | None = None
    clock: str | None = None
    cases: int | None = None
    ok_samples: int | None = None
    failed_samples: int | None = None
    planned_samples: int | None = None
    duration_s: float | None = None
    """From its creation to its last sample, pauses before a resume included."""
    size_bytes: int = 0


@dataclass(slots=True)
class _Found:
    """What the files of a run say of its samples."""

    statuses: Counter[str] = field(default_factory=Counter)
    last: str = ""


def list_runs(folder: Path, sort: str = "when") -> list[RunEntry]:
    """Every run directly under the folder, the newest (or largest, or last) at the end. Raises `UsageError` when there
    is no such folder. Whatever is no run is left out; a folder with the name of a run is one."""
    if not folder.is_dir():
        raise UsageError(f"there is no folder {folder}", hint="kvbench sweep smoke makes results/ and the first run")
    paths = [path for path in sorted(folder.iterdir()) if path.is_dir() and _is_run(path)]
    keys = {
        "when": lambda run: (run.created_at or "", run.run_id),
        "suite": lambda run: (run.suite or "", run.created_at or ""),
        "duration": lambda run: (run.duration_s or 0.0, run.run_id),
        "size": lambda run: (run.size_bytes, run.run_id),
    }
    return sorted(map(entry_of, paths), key=keys[sort])


def entry_of(path: Path) -> RunEntry:
    """One run, whatever state it is in."""
    entry = RunEntry(path.name, path, "damaged", size_bytes=size_of(path))
    try:
        _describe(entry)
    except KvbenchError as error:
        entry.note = error.message
    except OSError as error:
        entry.note = f"{error.filename or path} cannot be read: {error.strerror}"
    except (KeyError, TypeError, ValueError, AttributeError):
        entry.note = "plan.json or manifest.json is not what kvbench writes"
    return entry


def size_of(path: Path) -> int:
    """Bytes of all files below; what vanishes meanwhile counts nothing."""
    total = 0
    for found in path.rglob("*"):
        try:
            total += found.lstat().st_size if not found.is_dir() else 0
        except OSError:
            continue
    return total


def _is_run(path: Path) -> bool:
    is_run = os.path.exists(path / "plan.json") or _RUN_NAME.fullmatch(path.name) is not None
    return is_run and not path.name.startswith(".")


def _describe(entry: RunEntry) -> None:
    path = entry.path
    sealed = _json(path / "manifest.json") if (path / "manifest.json").exists() else None
    parts = sorted((path / "parts").glob("*/part.json"))
    plan = _json(path / "plan.json") if sealed is None or parts else {**sealed["controlled"], **sealed["volatile"]}
    _say_what(entry, plan)
    found = _samples(sealed, parts)
    _say_samples(entry, plan, found)
    gone = [f"{name}.parquet" for name in _SEALED if sealed is not None and not (path / f"{name}.parquet").exists()]
    entry.note = f"{', '.join(gone)} missing" if gone else ""
    is_whole = (entry.ok_samples or 0) + (entry.failed_samples or 0) >= (entry.planned_samples or 0)
    if not gone:
        entry.state = "running" if is_locked(path) else "finished" if is_whole else "unfinished"
    if entry.state == "unfinished":
        entry.note = f"kvbench sweep --resume {path}"


def _json(path: Path) -> dict[str, Any]:
    found = read_json(path)
    check_version_number(found.get("schema_version"), str(path))
    return found


def _say_what(entry: RunEntry, plan: Mapping[str, Any]) -> None:
    entry.suite = str(plan["suite"]["name"])
    entry.created_at = datetime.fromisoformat(plan["created_at"]).isoformat() if plan.get("created_at") else None
    device = (plan.get("device") or {}).get("name")
    entry.device = None if device is None else str(device)
    entry.clock = str(plan.get("clock", "wall"))
    entry.cases = len(plan["cases"])
    entry.planned_samples = entry.cases * int(plan["repetitions"])


def _samples(sealed: Mapping[str, Any] | None, parts: list[Path]) -> _Found:
    """Sealed samples by their counts; a part replaces the sealed sample that it repeats, which had failed."""
    found = _Found()
    keys: set[tuple[str, int]] = set()
    if sealed is not None:
        found.statuses.update(sealed["volatile"].get("statuses", {}))
        order = sealed["volatile"].get("order", [])
        keys = {(case_id, sample) for case_id, sample, _ in order}
        found.last = max((str(finished or "") for _, _, finished in order), default="")
    for path in parts:
        row = read_json(path)["row"]
        found.statuses[str(row["status"])] += 1
        found.last = max(found.last, str(row.get("finished_at") or ""))
        if (row["case_id"], row["sample"]) in keys:
            failed = next((status for status, count in found.statuses.items() if status != "ok" and count), None)
            found.statuses[failed or "ok"] -= 1
    return found


def _say_samples(entry: RunEntry, plan: Mapping[str, Any], found: _Found) -> None:
    entry.ok_samples = found.statuses.get("ok", 0)
    entry.failed_samples = sum(found.statuses.values()) - entry.ok_samples
    if found.last and entry.created_at:
        span = datetime.fromisoformat(found.last) - datetime.fromisoformat(str(plan["created_at"]))
        entry.duration_s = max(span.total_seconds(), 0.0)


def is_locked(path: Path) -> bool:
    """Whether a process is writing the run, as far as the system tells without the lock being touched (Linux)."""
    try:
        inode = (path / ".lock").stat().st_ino
        locks = Path("/proc/locks").read_text(encoding="ascii")
    except OSError:
        return False
    ours = re.compile(rf"FLOCK\s+ADVISORY\s+WRITE\s+\d+\s+[0-9a-f]+:[0-9a-f]+:{inode}\s")
    return bool(ours.search(locks))
