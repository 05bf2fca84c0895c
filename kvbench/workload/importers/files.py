"""A trace file as lines of text, plain or gzip, with every way it can be unreadable told apart."""

from __future__ import annotations

import gzip
import hashlib
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from kvbench.errors import UsageError

_GZIP_MAGIC = b"\x1f\x8b"
LINE_HINT = "correct or remove that line; docs/workloads.md describes every format"


class TraceFile:
    """Lines of a trace; `line` is the number of the last one handed out, counted from 1."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).expanduser()
        self.line = 0
        if self.path.is_dir():
            raise UsageError(f"{path} is a folder, not a trace", hint="give the trace file itself")
        if not self.path.exists():
            raise UsageError(f"there is no trace {path}", hint="check the path; it is relative to the current folder")
        if not self.path.is_file():
            raise UsageError(f"{path} is not a regular file", hint="save the trace to a file first")

    def lines(self) -> Iterator[str]:
        """The file's lines from the start, line ends and a byte-order mark removed."""
        self.line = 0
        try:
            with self._open() as stream:
                for self.line, raw in enumerate(stream, 1):
                    yield self._text(raw)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise UsageError(f"{self.path} is a broken gzip file: {error}", hint="fetch the trace again") from error
        except OSError as error:
            raise self._unreadable(error) from error

    def first_line(self) -> str:
        """The first line that is not blank."""
        for line in self.lines():
            if line.strip():
                return line
        raise UsageError(f"{self.path} is empty", hint="a trace has one request per line")

    def sha256(self) -> str:
        """Digest of the bytes on disk."""
        try:
            with self.path.open("rb") as stream:
                return hashlib.file_digest(stream, "sha256").hexdigest()
        except OSError as error:
            raise self._unreadable(error) from error

    def error(self, problem: str, *, hint: str = LINE_HINT) -> UsageError:
        """An error at the current line."""
        return UsageError(f"{self.path}:{max(self.line, 1)}: {problem}", hint=hint)

    def _unreadable(self, error: OSError) -> UsageError:
        return UsageError(f"cannot read {self.path}: {error.strerror or error}", hint="check the file's permissions")

    def _open(self) -> IO[bytes]:
        with self.path.open("rb") as stream:
            is_gzip = stream.read(2) == _GZIP_MAGIC
        return gzip.open(self.path, "rb") if is_gzip else self.path.open("rb")  # type: ignore[return-value]

    def _text(self, raw: bytes) -> str:
        try:
            text = raw.decode("utf-8-sig" if self.line == 1 else "utf-8")
        except UnicodeDecodeError as error:
            problem = f"not UTF-8 text (byte {raw[error.start]:#04x} at column {error.start + 1})"
            raise self.error(problem, hint="traces are UTF-8 text, plain or gzip") from error
        return text.rstrip("\r\n")
