"""`-a key=value,value` and `--trace`: changes from the command line, applied to a suite's content."""

from __future__ import annotations

import copy
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from kvbench.errors import UsageError
from kvbench.spec.cases import expand_all, kinds_of
from kvbench.spec.edit import set_axis, set_fixed
from kvbench.spec.keys import SECTIONS, Key, all_keys, candidates, normalise, unknown_key
from kvbench.spec.load import LoadedSuite, from_effective
from kvbench.spec.matrix import read_matrix
from kvbench.spec.problems import Problem, SuiteError
from kvbench.spec.suite import Suite
from kvbench.spec.trace_options import with_trace as with_trace
from kvbench.spec.translate import problems_of

_OPENING, _CLOSING = "[{", "]}"


@dataclass(frozen=True)
class _Change:
    """One `-a`: as typed, the keys that it stands for, their values."""

    text: str
    keys: tuple[str, ...]
    values: list[Any]


def apply_overrides(loaded: LoadedSuite, texts: Sequence[str]) -> LoadedSuite:
    """The suite with every `key=value[,value…]` in place of what it said: one value or more become an axis; settings
    that hold for the whole run (`measure`, `slo`) take one value. A key may be its unique last part.

    Raises one SuiteError that names every bad override.
    """
    if not texts:
        return loaded
    changes: list[_Change] = []
    problems: list[Problem] = []
    for text in texts:
        try:
            changes.append(_read(text, loaded.suite))
        except UsageError as error:
            problems.append(Problem(f"-a {text}", error.message))
    problems += _given_twice(changes)
    data = copy.deepcopy(loaded.effective)
    for change in changes:
        problems += _put(data, change)
    if problems:
        raise SuiteError(problems, what="the command line", hint="kvbench suites schema prints every key")
    changed = _rebuilt(loaded, data, texts)
    _refuse_moot(changed.suite, changes)
    return changed


def _rebuilt(loaded: LoadedSuite, data: dict[str, Any], texts: Iterable[str]) -> LoadedSuite:
    what = f"suite {loaded.suite.name} with {' '.join(texts)}"
    return from_effective(data, path=loaded.path, text=loaded.text, changes=(*loaded.changes, *texts), what=what)


def _read(text: str, suite: Suite) -> _Change:
    name, equals, values = text.partition("=")
    name = name.strip()
    if not equals or not name:
        raise UsageError("expected key=value, or key=value,value for an axis")
    if any("\ud800" <= letter <= "\udfff" for letter in text):
        raise UsageError("not text that a file could hold: it is not UTF-8")
    keys = resolve(name, suite)
    pieces = [piece.strip() for piece in _split(values)]
    if not all(pieces):
        raise UsageError("a value is missing; expected key=value,value")
    if all_keys()[keys[0]].kind is None and len(pieces) > 1:
        raise UsageError(f"{keys[0]} holds for the whole run and takes one value")
    return _Change(text, keys, [_value(keys[0], piece) for piece in pieces])


def resolve(name: str, suite: Suite) -> tuple[str, ...]:
    """The settings that a name from the command line stands for: one, or the same setting of each kind of case that
    the suite has. Raises UsageError when it is unknown, ambiguous, or of a kind that the suite lacks."""
    found = candidates(name)
    if not found:
        raise UsageError(unknown_key(name))
    kinds = kinds_of(suite, read_matrix({"axes": suite.axes, "zip": suite.zip}))
    usable = [key for key in found if key.kind is None or key.kind in kinds]
    if not usable:
        raise UsageError(f"sets {found[0].kind} cases, and suite {suite.name} has none")
    if len(usable) > 1 and not _is_shared(usable):
        raise UsageError(f"ambiguous: {', '.join(key.path for key in found)}; write one of these")
    return tuple(key.path for key in usable)


def _is_shared(keys: list[Key]) -> bool:
    """Whether these are the same setting of engine and of kernel cases."""
    parts = {key.path.partition(".")[2] for key in keys}
    return len(parts) == 1 and {key.section for key in keys} == {"engine", "kernel"} and "name" not in parts


def _split(text: str) -> Iterator[str]:
    """At commas outside quotes and brackets."""
    depth, quote, piece = 0, "", ""
    for letter in text:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "\"'":
            quote = letter
        else:
            depth += (letter in _OPENING) - (letter in _CLOSING)
        if letter == "," and depth == 0 and not quote:
            yield piece
            piece = ""
        else:
            piece += letter
    yield piece


def _value(key: str, piece: str) -> Any:
    """The piece as TOML if the setting takes that, else as text (`bf16`, `64MiB`, `1/16`, a path of digits)."""
    errors: list[ValidationError] = []
    for value in (_toml(piece), piece):
        try:
            normalise(key, value)
        except ValidationError as error:
            errors.append(error)
        else:
            return value
    section = key.partition(".")[0]
    raise UsageError("; ".join(problem.text for problem in problems_of(errors[0], SECTIONS[section], section)))


def _toml(piece: str) -> Any:
    try:
        parsed = tomllib.loads(f"v = {piece}")
    except (ValueError, RecursionError):
        return piece
    return parsed["v"] if list(parsed) == ["v"] else piece


def _given_twice(changes: list[_Change]) -> Iterator[Problem]:
    first: dict[str, str] = {}
    for change in changes:
        for key in change.keys:
            if key in first:
                yield Problem(f"-a {change.text}", f"{key} was given before, by -a {first[key]}; give it once")
            first[key] = change.text


def _put(data: dict[str, Any], change: _Change) -> Iterator[Problem]:
    for key in change.keys:
        partners = [other for group in data.get("zip", []) if key in group for other in group if other != key]
        if partners:
            text = f"{key} is zipped with {', '.join(partners)}; change the suite's zip group instead"
            yield Problem(f"-a {change.text}", text)
        elif all_keys()[key].kind is None:
            set_fixed(data, key, change.values[0])
        else:
            set_axis(data, key, change.values)


def _refuse_moot(suite: Suite, changes: list[_Change]) -> None:
    """An override that decides nothing in any case would be accepted and ignored."""
    moot = expand_all(suite).moot_everywhere
    problems = [
        Problem(f"-a {change.text}", f"has no effect while {why}")
        for change in changes
        for key in change.keys
        for name, why in moot.items()
        if key == name or key.startswith(f"{name}.")
    ]
    if problems:
        raise SuiteError(problems, what="the command line", hint="leave it out, or set what it depends on as well")
