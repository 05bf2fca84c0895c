"""One block of KV as a file of the disk tier: a header that says whose bytes these are, then the bytes.

    offset  size
    0       8     magic, "kvblock" and a zero
    8       4     version of this layout, little-endian
    12      16    identity: digest of all that decides how the bytes are to be read (geometry, dtype, block size …)
    28      16    key: digest of the contents that they are (E75)
    44      8     length of the bytes
    52      16    xxh3-128 of the bytes
    68            the bytes

A file appears under its name only when it is whole (written beside it, then renamed), and whatever is read back is
believed only if every field of the header is the expected one.
"""

from __future__ import annotations

import os
import struct
from typing import TYPE_CHECKING

import numpy as np
import xxhash

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]

MAGIC = b"kvblock\0"
VERSION = 1
_HEADER = struct.Struct("<8sI16s16sQ16s")
HEADER_BYTES = _HEADER.size


class BlockFileError(Exception):
    """A file that does not hold what was asked for; the text says how it is known."""


def identity_of(*parts: object) -> bytes:
    """16 bytes for everything that must be equal for bytes to mean the same."""
    return xxhash.xxh3_128_digest("\0".join(map(str, parts)).encode())


def write_block(path: Path, identity: bytes, key: bytes, payload: Bytes) -> None:
    """Put a block file in place whole, or raise `OSError` and leave nothing behind."""
    data = payload.data
    header = _HEADER.pack(MAGIC, VERSION, identity, key, len(data), xxhash.xxh3_128_digest(data))
    part = path.with_suffix(".part")
    try:
        with open(part, "wb", buffering=0) as file:
            _write_all(file.fileno(), header)
            _write_all(file.fileno(), data)
        os.replace(part, path)
    except OSError:
        part.unlink(missing_ok=True)
        raise


def read_block(path: Path, identity: bytes, key: bytes, into: Bytes) -> None:
    """Fill `into` with the block's bytes. `BlockFileError` when the file is missing, short, damaged or another's."""
    try:
        with open(path, "rb", buffering=0) as file:
            header = file.read(HEADER_BYTES)
            count = file.readinto(into.data)
            is_longer = bool(file.read(1))
    except OSError as error:
        raise BlockFileError(f"cannot be read: {error.strerror}") from error
    if len(header) < HEADER_BYTES:
        raise BlockFileError("its header is cut off")
    magic, version, found_identity, found_key, length, checksum = _HEADER.unpack(header)
    if (magic, version, found_identity) != (MAGIC, VERSION, identity):
        raise BlockFileError("it was written for another layout of KV")
    if found_key != key:
        raise BlockFileError("it holds other contents than those asked for")
    if length != len(into) or count != length or is_longer:
        raise BlockFileError(f"it holds {count} bytes where {len(into)} are expected")
    if xxhash.xxh3_128_digest(into.data) != checksum:
        raise BlockFileError("its bytes do not match their checksum")


def _write_all(descriptor: int, data: bytes | memoryview) -> None:
    left = memoryview(data)
    while len(left):
        left = left[os.write(descriptor, left) :]
