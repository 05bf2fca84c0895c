"""The disk tier's bytes: one file per block, written and read by a few threads.

A block on its way to disk is held in memory until its file is there. No more than `STAGING_BYTES` wait like this; what
would go beyond is refused at once and simply not kept (E73), since a disk that cannot keep up must not stop the engine.
The first file that cannot be written switches writing off for good.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np

from kvbench.engine.kvstore.block_file import BlockFileError, read_block, write_block

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvbench.engine.kvstore.block_file import Bytes
    from kvbench.engine.kvstore.disk_folder import DiskFolder

THREADS = 4
STAGING_BYTES = 64 << 20
_MIN_STAGED = 8


class DiskFiles:
    """Disk block ids → files `<id>.kv` of `block_bytes` each."""

    def __init__(self, folder: DiskFolder, block_bytes: int, identity: bytes) -> None:
        self._folder, self._block_bytes, self._identity = folder, block_bytes, identity
        self._threads: ThreadPoolExecutor | None = None
        self._writes: dict[int, Future[bool]] = {}
        """Files being written"""
        self._most_staged = max(_MIN_STAGED, STAGING_BYTES // block_bytes)
        self.write_error: str | None = None

    def write(self, block: int, key: bytes, parts: list[Bytes]) -> Future[bool] | None:
        """Take the bytes now and write them in the background: whether that worked. None when there is no staging
        memory for them, or writing is off."""
        self._writes = {one: future for one, future in self._writes.items() if not future.done()}
        if self.write_error is not None or len(self._writes) >= self._most_staged:
            return None
        payload = np.concatenate([part.reshape(-1) for part in parts])
        future = self._pool().submit(self._write, block, key, payload)
        self._writes[block] = future
        return future

    def read(self, block: int, key: bytes, deliver: Callable[[Bytes], None]) -> Future[bool]:
        """Read in the background and hand the bytes to `deliver`; whether the file held what was asked for."""
        return self._pool().submit(self._read, block, key, deliver, self._writes.get(block))

    def clear(self) -> None:
        """Remove all files; nothing may be under way."""
        self._writes.clear()
        self._folder.clear()

    def close(self) -> None:
        """End the threads and remove the folder."""
        if self._threads is not None:
            self._threads.shutdown(wait=True, cancel_futures=True)
            self._threads = None
        self._folder.remove()

    def _pool(self) -> ThreadPoolExecutor:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="kvbench-disk")
        return self._threads

    def _write(self, block: int, key: bytes, payload: Bytes) -> bool:
        if self.write_error is not None:
            return False
        path = self._folder.path / f"{block}.kv"
        try:
            path.unlink(missing_ok=True)  # the old contents first, so that the size limit holds at any time
            write_block(path, self._identity, key, payload)
        except OSError as error:
            self.write_error = f"{path.parent}: {error.strerror or error}"
            return False
        return True

    def _read(self, block: int, key: bytes, deliver: Callable[[Bytes], None], write: Future[bool] | None) -> bool:
        """A file that is still being written was submitted before, so a thread is at it already."""
        if write is not None and not write.result():
            return False
        payload = np.empty(self._block_bytes, dtype=np.uint8)
        try:
            read_block(self._folder.path / f"{block}.kv", self._identity, key, payload)
        except BlockFileError:
            return False
        deliver(payload)
        return True
