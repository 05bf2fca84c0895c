"""A private folder for the files of one disk tier: made, checked, and gone when its engine is closed.

A process that is killed cannot remove its folder. So every folder is locked for as long as its owner lives, and whoever
makes a folder first removes those beside it that nobody holds any more. A lock on the base folder keeps the two apart.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import tempfile
import weakref
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from kvbench.errors import CannotRunError
from kvbench.paths import cache_dir
from kvbench.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

PREFIX = "kv-tier-"
_LOCK = "lock"


def base_folder(disk_path: str) -> Path:
    """Where folders are made: `disk_path`, or the user's cache when that is empty."""
    return Path(disk_path) if disk_path else cache_dir() / "disk-tier"


def check_disk(base: Path, needed: int) -> None:
    """`CannotRunError` when `needed` bytes could not be written there now."""
    folder = open_folder(base)
    try:
        (folder.path / "probe").write_bytes(b"\0" * 4096)
        free = shutil.disk_usage(base).free
    except OSError as error:
        raise _unusable(base, error) from error
    finally:
        folder.remove()
    if needed > free:
        raise CannotRunError(
            f"a disk tier of {format_bytes(needed)} does not fit on the disk of {base}: {format_bytes(free)} is free",
            hint="lower engine.disk_memory, or point engine.disk_path at a larger disk",
        )


class DiskFolder:
    """An empty folder that is ours until `remove`, or until nobody knows it any more."""

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self._end = weakref.finalize(self, _remove, path, lock, os.getpid())

    def clear(self) -> None:
        """Remove all files, and stay."""
        for entry in os.scandir(self.path):
            if entry.name != _LOCK:
                with suppress(FileNotFoundError):
                    os.unlink(entry.path)

    def remove(self) -> None:
        """Idempotent."""
        self._end()


def _remove(path: Path, lock: int, owner: int) -> None:
    if os.getpid() == owner:  # a forked child that ends takes nothing away
        shutil.rmtree(path, ignore_errors=True)
        os.close(lock)


def open_folder(base: Path) -> DiskFolder:
    """A new folder in `base`; folders that a killed process left there go first. `CannotRunError` when it cannot be."""
    try:
        base.mkdir(parents=True, exist_ok=True)
        with _held(base / ".lock"):
            _remove_abandoned(base)
            path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=base))
            lock = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise _unusable(base, error) from error
    return DiskFolder(path, lock)


def _remove_abandoned(base: Path) -> None:
    for path in base.glob(PREFIX + "*"):
        try:
            lock = os.open(path / _LOCK, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR):
                shutil.rmtree(path, ignore_errors=True)
            continue  # somebody else's, with other permissions
        with suppress(BlockingIOError):  # its owner lives
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)
        os.close(lock)


@contextmanager
def _held(path: Path) -> Iterator[None]:
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _unusable(base: Path, error: OSError) -> CannotRunError:
    return CannotRunError(
        f"the disk tier cannot write to {base}: {error.strerror or error}",
        hint="point engine.disk_path at a folder that can be written",
    )
