"""From a name or a path to a suite that is known to expand, or to every reason why it does not."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from kvbench.console import plain
from kvbench.errors import UsageError
from kvbench.paths import suites_dir
from kvbench.spec.cases import Expansion, expand_all
from kvbench.spec.document import Document, flattened, parse, read_text
from kvbench.spec.fields import PARTIAL
from kvbench.spec.keys import SECTIONS_OF
from kvbench.spec.matrix import read_matrix
from kvbench.spec.problems import Problem, SuiteError, did_you_mean
from kvbench.spec.suite import Suite
from kvbench.spec.toml_write import to_toml
from kvbench.spec.translate import problems_of

HINT = "kvbench suites schema prints every key; kvbench suites show smoke prints an example"
_MATRIX = ("axes", "zip", "exclude", "only")


@dataclass(frozen=True)
class LoadedSuite:
    """A suite and where it came from.

    `effective` is its content after overrides, plain JSON data from which `from_effective` makes the same suite;
    `digest` is its sha256. `text` is the file as it was read. `changes` are the overrides that were applied.
    """

    suite: Suite
    path: Path | None
    text: str
    effective: dict[str, Any]
    changes: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        return hashlib.sha256(json.dumps(self.effective, sort_keys=True).encode()).hexdigest()


def suite_names() -> list[str]:
    """The suites that ship, by name."""
    return sorted(path.stem for path in suites_dir().glob("*.toml"))


def load_suite(name_or_path: str | Path) -> LoadedSuite:
    """A built-in suite by name, or a TOML file by path.

    Raises one SuiteError that lists every fault as `file:line: key: what is wrong`, or a UsageError when the file
    cannot be read or is no TOML.
    """
    path = find_suite(name_or_path)
    text = read_text(path)
    document = parse(text, plain(str(path)))
    suite, problems = check(document.data)
    problems = [*document.problems, *problems]
    if suite and not problems:
        problems = list(_ignored(document, expand_all(suite)))
    if suite is None or problems:
        placed = sorted((document.placed(p) for p in problems), key=lambda p: int(p.place.rpartition(":")[2]))
        raise SuiteError(placed, what=document.name, hint=HINT)
    return LoadedSuite(suite, path, text, document.data)


def find_suite(name_or_path: str | Path) -> Path:
    """The file of a built-in suite, or the path itself when it looks like one."""
    text = str(name_or_path)
    names = suite_names()
    if isinstance(name_or_path, str) and text in names:
        return suites_dir() / f"{text}.toml"
    if isinstance(name_or_path, Path) or "/" in text or text.endswith(".toml") or _exists(text):
        return Path(name_or_path)
    hint = f"one of {', '.join(names)}, or the path of a TOML file"
    raise UsageError(f'no suite named "{plain(text)}"{did_you_mean(text, names)}', hint=hint)


def _exists(text: str) -> bool:
    try:
        return bool(text) and Path(text).exists()
    except (OSError, ValueError):
        return False


def from_effective(
    effective: Mapping[str, Any],
    *,
    path: Path | None = None,
    text: str | None = None,
    changes: tuple[str, ...] = (),
    what: str = "suite",
) -> LoadedSuite:
    """The suite with this content. Raises SuiteError; without a file there are no line numbers."""
    data, problems = flattened(dict(effective))
    suite, more = check(data)
    problems += more
    if suite is None or problems:
        raise SuiteError(problems, what=what, hint=HINT)
    return LoadedSuite(suite, path, to_toml(data) if text is None else text, data, changes)


def check(data: dict[str, Any]) -> tuple[Suite | None, list[Problem]]:
    """The suite with flat axes, or all that is wrong with it; impossible combinations only when each key is right."""
    problems: list[Problem] = []
    try:
        Suite.model_validate({key: value for key, value in data.items() if key not in _MATRIX}, context=PARTIAL)
    except ValidationError as error:
        problems = problems_of(error, Suite)
    problems += read_matrix(data).problems
    if problems:
        return None, problems
    suite = Suite.model_validate(data, context=PARTIAL)
    whole = [Problem(f"measure.{key}", text) for key, text in suite.measure.conflicts()]
    return suite, whole + expand_all(suite).problems


def _ignored(document: Document, expansion: Expansion) -> Iterator[Problem]:
    """What a file says in vain: settings that an axis or another setting overrules, rules that match nothing."""
    varied = {key for group in (document.data.get("axes", {}), *document.data.get("zip", [])) for key in group}
    moot = expansion.moot_everywhere
    for key in _fixed_keys(document.data):
        parents = _with_parents(key)
        if parents & varied:
            yield Problem(key, "is an axis as well; keep one of the two")
        elif overruled := parents & set(moot):
            yield Problem(key, f"has no effect while {moot[overruled.pop()]}; leave it out")
    for place, key in _varied_places(document.data):
        if overruled := _with_parents(key) & set(moot):
            yield Problem(place, f"has no effect while {moot[overruled.pop()]}; leave it out")
    for place in expansion.idle_rules:
        yield Problem(place, "matches no case; expected a combination that the axes make")


def _varied_places(data: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Where each varied key stands, and the key."""
    yield from ((f"axes.{key}", key) for key in data.get("axes", {}))
    for number, group in enumerate(data.get("zip", [])):
        yield from ((f"zip.{number}.{key}", key) for key in group)


def _with_parents(key: str) -> set[str]:
    return {key, *(key[:at] for at, letter in enumerate(key) if letter == ".")}


def _fixed_keys(data: Mapping[str, Any]) -> Iterator[str]:
    for section in (name for names in SECTIONS_OF.values() for name in names):
        yield from _dotted(data.get(section, {}), section)


def _dotted(table: Any, prefix: str) -> Iterator[str]:
    if not isinstance(table, dict):
        yield prefix
        return
    for key, value in table.items():
        yield from _dotted(value, f"{prefix}.{key}")
