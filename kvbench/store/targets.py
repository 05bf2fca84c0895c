"""Files that a user names for a result: only an earlier result of the same kind is replaced, and whole or not at all.

Every command that writes such a file asks `check_target` before its work and writes through `writing` after it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from kvbench.errors import UsageError
from kvbench.store.files import make_folder, replacing, write_errors


@dataclass(frozen=True, slots=True)
class Target:
    """A kind of file. `what` it is, for the message; `is_ours`: whether the regular file at a path is one."""

    what: str
    is_ours: Callable[[Path], bool]
    option: str = "--out"
    makes_folder: bool = False
    """Whether a folder that is not there is made; otherwise it is an error."""

    @property
    def hint(self) -> str:
        return f"choose another file with {self.option}" if self.option.startswith("-") else "choose another file"


def begins_with(*marks: bytes, within: int = 1024) -> Callable[[Path], bool]:
    """Whether one of `marks` stands in the first `within` bytes of a file."""

    def is_ours(path: Path) -> bool:
        with path.open("rb") as file:
            head = file.read(within)
        return any(mark in head for mark in marks)

    return is_ours


def json_target(form: str, option: str = "--out", *, makes_folder: bool = False) -> Target:
    """A JSON object whose first keys include `"format": form`."""
    mark = f'"format": "{form}"'.encode()
    return Target(f'"{form}" file', begins_with(mark, within=256), option, makes_folder)


def check_target(path: Path, target: Target) -> None:
    """`UsageError` where the result must not go or cannot: a folder, a device, a folder that is not there, a file that
    is something else."""
    with write_errors(path, hint=target.hint):
        if not path.name or path.is_dir():
            raise UsageError(f"{path} is a folder", hint=f"name a file in it, or {target.hint}")
        if path.exists() and not path.is_file():
            raise UsageError(f"{path} is no regular file", hint=target.hint)
        if path.exists() and not target.is_ours(path):
            raise UsageError(f"{path} is there already and is no {target.what}", hint=target.hint)
        _check_folder(path.absolute().parent, target)


@contextmanager
def writing(path: Path, target: Target) -> Iterator[BinaryIO]:
    """The file to write; it takes its name when it is whole. Checked once more: the work may have taken hours."""
    check_target(path, target)
    with write_errors(path, hint=target.hint):
        if target.makes_folder:
            make_folder(path.parent)
        with replacing(path) as file:
            yield file


def _check_folder(folder: Path, target: Target) -> None:
    if target.makes_folder:
        folder = next(one for one in (folder, *folder.parents) if one.exists())
    if not folder.is_dir():
        raise UsageError(f"{folder} is no folder", hint=f"make it first, or {target.hint}")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UsageError(f"{folder} cannot be written", hint=target.hint)
