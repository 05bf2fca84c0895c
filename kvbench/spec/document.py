"""The TOML file behind a suite: read whole, parsed, its axes flattened, every key with its line."""

from __future__ import annotations

import dataclasses
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from kvbench.console import plain
from kvbench.errors import UsageError
from kvbench.spec.problems import Problem
from kvbench.spec.toml_lines import key_lines
from kvbench.spec.words import shown

MAX_FILE_BYTES = 1 << 20
_AXIS = re.compile(r"(?:axes|zip\.\d+)\.(.+)")


@dataclass(frozen=True)
class Document:
    """`data` has flat axes (`"engine.block_size"`), however the file nests them; `problems` is what that turned up."""

    name: str
    text: str
    data: dict[str, Any]
    lines: dict[str, int] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()

    def placed(self, problem: Problem) -> Problem:
        """The problem with `file:line`, of its key or of the nearest table around it."""
        return dataclasses.replace(problem, place=f"{self.name}:{self._line(problem.at or problem.key)}")

    def _line(self, key: str) -> int:
        """Of the key itself, of the axis that varies it, or of the nearest table around it."""
        while key:
            found = self.lines.get(key) or self._axis_lines.get(key)
            if found:
                return found
            key = key.rpartition(".")[0]
        return 1

    @cached_property
    def _axis_lines(self) -> dict[str, int]:
        """Setting → line of its axis, in `axes` or in a zip group."""
        found: dict[str, int] = {}
        for name, line in self.lines.items():
            if axis := _AXIS.fullmatch(name):
                found.setdefault(axis.group(1), line)
        return found


def read_text(path: Path) -> str:
    """The file's text, or an error that says what is wrong with the file."""
    name = plain(str(path))
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        raise UsageError(f"no such file: {name}", hint="kvbench suites list prints the suites that ship") from None
    except IsADirectoryError:
        raise UsageError(f"{name} is a directory", hint="name one TOML file in it") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"cannot read {name}: {reason}", hint="name a TOML file that you may read") from None
    if len(raw) > MAX_FILE_BYTES:
        raise UsageError(f"{name} is larger than 1 MiB", hint="a suite is a short TOML file; is this another file?")
    return _decoded(raw, name)


def _decoded(raw: bytes, name: str) -> str:
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise UsageError(f"{name}:{line}: not UTF-8 text", hint="a suite is a TOML file in UTF-8") from None
    if not text.strip():
        raise UsageError(f"{name} is empty", hint="kvbench suites show smoke prints a suite to start from")
    return text


def parse(text: str, name: str) -> Document:
    """The document, or tomllib's own syntax error with its line."""
    try:
        data = tomllib.loads(text)
        lines = key_lines(text)
    except RecursionError:
        raise UsageError(f"{name}: lists or tables are nested too deeply", hint="no suite needs that") from None
    except ValueError as error:
        raise UsageError(_syntax_error(str(error), text, name), hint="a suite is a TOML file, see toml.io") from None
    flat, problems = flattened(data)
    return Document(name, text, flat, lines, tuple(problems))


def _syntax_error(message: str, text: str, name: str) -> str:
    what, _, where = message.partition(" (at ")
    last = text.rstrip().count("\n") + 1
    line = where.removeprefix("line ").partition(",")[0] if where.startswith("line ") else str(last)
    column = where.rstrip(")").partition("column ")[2]
    return plain(f"{name}:{line}: {what[0].lower()}{what[1:]}{f' (column {column})' if column else ''}")


def flattened(data: dict[str, Any]) -> tuple[dict[str, Any], list[Problem]]:
    """The same suite with `axes`, `zip`, `exclude` and `only` as dotted key → value."""
    flat, problems = dict(data), list[Problem]()
    if "axes" in data:
        flat["axes"] = _flat_table(data["axes"], "axes", problems)
    for name in ("zip", "exclude", "only"):
        if name in data:
            flat[name] = _flat_list(data[name], name, problems)
    return flat, problems


def _flat_list(entries: Any, name: str, problems: list[Problem]) -> list[dict[str, Any]]:
    if not isinstance(entries, list):
        problems.append(Problem(name, f"expected [[{name}]], a list of tables, got {shown(entries)}"))
        return []
    return [_flat_table(entry, f"{name}.{number}", problems) for number, entry in enumerate(entries)]


def _flat_table(table: Any, place: str, problems: list[Problem]) -> dict[str, Any]:
    if not isinstance(table, dict):
        problems.append(Problem(place, f"expected a table of dotted key = value, got {shown(table)}"))
        return {}
    flat: dict[str, Any] = {}
    for key, value in _leaves(table):
        if key in flat:
            problems.append(Problem(f"{place}.{key}", "given twice, in two spellings; keep one"))
        flat[key] = value
    return flat


def _leaves(table: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
