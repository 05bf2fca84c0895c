"""Where winners are kept: a JSON file each in the user's cache, and one JSON document to carry them elsewhere."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvbench.errors import CannotRunError, DataError, KvbenchError, UsageError
from kvbench.paths import cache_dir
from kvbench.tuned.table import TunedTable
from kvbench.tuned.winner import Winner, table_digest, winner_from

DOCUMENT = "kvbench tuned kernels"
_MAX_BYTES = 64 << 20


def store_dir() -> Path:
    """The store's folder; `KVBENCH_CACHE_DIR` moves it."""
    return cache_dir() / "tuned"


@dataclass(frozen=True, slots=True)
class ReadStore:
    """The table that could be read, and a line for every file that could not and is left out."""

    table: TunedTable
    problems: tuple[str, ...]


def read_store(folder: Path | None = None) -> ReadStore:
    """Every entry; a damaged file is left out and named, never guessed at."""
    folder = folder or store_dir()
    winners, problems = [], []
    try:
        paths = sorted(folder.glob("*.json"))
    except OSError as error:
        return ReadStore(TunedTable(), (f"cannot read {folder}: {error.strerror or error}",))
    for path in paths:
        try:
            winner = winner_from(_read(path), str(path))
            if path.stem != winner.key.digest:
                raise DataError(
                    f"{path} holds the configuration of another key", hint="it was renamed or copied by hand"
                )
            winners.append(winner)
        except KvbenchError as error:
            problems.append(f"{error.message}; the file is left out")
    return ReadStore(TunedTable(winners), tuple(problems))


def keep(winner: Winner, folder: Path | None = None) -> Path:
    """Write an entry in one move; what the key had before is replaced."""
    folder = folder or store_dir()
    path = folder / f"{winner.key.digest}.json"
    _write(path, winner.to_dict())
    return path


def export_document(winners: list[Winner]) -> dict[str, Any]:
    """What `kvbench tune export` prints."""
    entries = [w.to_dict() for w in sorted(winners, key=lambda w: w.key.digest)]
    return {"document": DOCUMENT, "digest": table_digest(winners), "winners": entries}


def read_document(path: Path) -> list[Winner]:
    """The winners of an exported document, all of them sound; `DataError` otherwise."""
    data = _read(path)
    entries = data.get("winners") if isinstance(data, dict) and data.get("document") == DOCUMENT else None
    if not isinstance(entries, list):
        raise DataError(f"{path} is no document of tuned kernels", hint="kvbench tune export FILE writes one")
    winners = [winner_from(entry, f"{path}, entry {number}") for number, entry in enumerate(entries, 1)]
    if data.get("digest") != table_digest(winners):
        raise DataError(f"{path} is not what was exported: its digest does not match", hint="the file is damaged")
    return winners


def write_document(path: Path, winners: list[Winner]) -> None:
    """Into a file of their own, with a digest, for `read_document` elsewhere."""
    _write(path, export_document(winners))


def _read(path: Path) -> Any:
    try:
        if not path.is_dir() and path.exists() and not path.is_file():
            raise UsageError(f"{path} is not a regular file", hint="save the winners to a file first")
        if path.stat().st_size > _MAX_BYTES:
            raise DataError(f"{path} is too large for tuned configurations", hint="is it another kind of file?")
        return json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse)
    except OSError as error:
        raise UsageError(
            f"cannot read {path}: {error.strerror or error}", hint="name a file that you may read"
        ) from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is not JSON: {error}", hint="the file is damaged") from None


def _refuse(text: str) -> float:
    raise ValueError(f"{text} is no number")


def _write(path: Path, data: dict[str, Any]) -> None:
    """Beside its place, flushed, then renamed: readers see the old contents or the new."""
    if not path.name or (path.exists() and not path.is_file()):  # a rename would put a file where a device was
        raise UsageError(f"{path} is no regular file", hint="choose another file")
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    text = json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink()
        raise CannotRunError(f"cannot write {path}: {error.strerror or error}", hint="choose another file") from error
