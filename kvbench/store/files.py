"""Files that are whole or not there: every write of the store goes through here.

A file is written beside its place, flushed to the disk, then renamed; a folder likewise. What a kill leaves behind is
in the run's staging folder and nowhere else.
"""

from __future__ import annotations

import errno
import hashlib
import io
import json
import math
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from kvbench.errors import CannotRunError, DataError, KvbenchError, UsageError

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_CLOSED = {errno.EROFS, errno.EACCES, errno.EPERM}


class HashedFile(io.RawIOBase):
    """A new file that knows the sha256 of what went into it; `seal` flushes it to the disk."""

    def __init__(self, path: Path) -> None:
        self._file: BinaryIO = path.open("wb")
        self._hash = hashlib.sha256()

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        self._file.write(view)
        self._hash.update(view)
        return len(view)

    def tell(self) -> int:
        return self._file.tell()

    def seal(self) -> str:
        """Flush to the disk and close; the hexadecimal sha256."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self.close()
        return self._hash.hexdigest()

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()


@contextmanager
def write_errors(path: Path, hint: str | None = None) -> Iterator[None]:
    """A full or read-only disk becomes one clear error that names the folder. `hint` is the way out where the path is
    no run's folder."""
    try:
        yield
    except OSError as error:
        raise _explained(error, path, hint) from error


def _explained(error: OSError, path: Path, hint: str | None) -> KvbenchError:
    if error.errno in _FULL:
        return CannotRunError(
            f"no space left to write {path}",
            hint=hint or "free some space and run the same command with --resume; finished samples are kept",
        )
    return UsageError(
        f"cannot write {path}: {error.strerror or error}", hint=hint or "choose another folder with --out"
    )


def write_new(path: Path, data: bytes) -> str:
    """Write and flush a file; the sha256 of its contents."""
    with HashedFile(path) as file:
        file.write(data)
        return file.seal()


def replace_file(path: Path, data: bytes, staging: Path) -> None:
    """Put `data` at `path` in one move: readers see the old contents or the new, never a part."""
    temporary = make_folder(staging) / f"{path.name}.{os.getpid()}"
    write_new(temporary, data)
    move(temporary, path)


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file of the user's: what is written stands beside `path` and takes its name when it is whole. Readers see the
    old contents or the new; what fails leaves the old ones and nothing else. A link stays one: what it names is
    written."""
    path = Path(os.path.realpath(path))
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with beside.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    finally:
        remove(beside)


def move(source: Path, target: Path) -> None:
    """Rename within one file system and make the rename last."""
    os.replace(source, target)
    sync_folder(target.parent)
    if source.parent != target.parent:
        sync_folder(source.parent)


def sync_folder(path: Path) -> None:
    """Flush a folder's entries; where the system cannot, the rename alone has to do."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(handle)


def make_folder(path: Path) -> Path:
    """The folder, made with its parents where it is missing."""
    path.mkdir(parents=True, exist_ok=True)
    return path


def is_utf8(path: Path) -> bool:
    """Whether the name has only whole characters; Linux takes any bytes."""
    try:
        str(path.absolute()).encode()
    except UnicodeEncodeError:
        return False
    return True


def remove(path: Path) -> None:
    """Remove a file or a folder; one that is gone already is fine."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def digest_of(path: Path) -> str:
    """sha256 of a file, read in pieces."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def to_json(value: Any) -> bytes:
    """JSON in the one form that we write and hash: keys in their own order (axes keep the suite's), no NaN."""
    return (json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()


def to_text(value: Any) -> str:
    """The same on one line, for a column."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False, allow_nan=False)


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file; `DataError` naming the file when it is missing or damaged."""
    try:
        text = path.read_text(encoding="utf-8")
        found = json.loads(text, parse_float=_finite, parse_constant=_finite)
        if "\\ud" in text.lower():
            json.dumps(found, ensure_ascii=False).encode()  # half a character cannot be written anywhere: a ValueError
    except FileNotFoundError:
        raise DataError(f"{path} is missing", hint="is this a run folder, and is it whole?") from None
    except PermissionError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}", hint="see to its permissions") from None
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path} cannot be read: {error}", hint="the file is damaged") from None
    if not isinstance(found, dict):
        raise DataError(f"{path} is not a JSON object", hint="the file is damaged")
    return found


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is not a finite number")
    return value
