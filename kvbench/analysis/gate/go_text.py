"""Go benchmark text: one night's baseline and experiment, a file each, as the Go project's own nightly runs write them.

https://go.dev/design/14313-benchmark-format: lines `key: value`, and `BenchmarkName iterations value unit …`. A
benchmark's lines are its runs in the order of time.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kvbench.analysis.gate.series import Recording, Series
from kvbench.analysis.gate.types import Worse

_DATES = tuple(
    re.compile(rf"(?<![0-9A-Za-z]){form}(?![0-9A-Za-z])") for form in (r"\d{8}T\d{6}", r"\d{4}-\d\d-\d\d", r"\d{8}")
)
"""A commit's digest may hold eight digits too: the longer form wins, and a date stands alone."""
_BENCHMARK = re.compile(r"^Benchmark\S*\s+\d+\s+\S+\s+\S+", re.MULTILINE)
_USUAL_UNIT = "ns/op"
_MORE_IS_BETTER = re.compile(r"(/s|/sec)$")

Values = dict[tuple[str, str], list[float]]
"""(benchmark, unit) → its runs"""


@dataclass(slots=True)
class _File:
    date: str
    label: str
    """What the file's name says before the date: the toolchain"""
    is_base: bool
    values: Values = field(default_factory=dict)


def is_go_text(text: str) -> bool:
    return _BENCHMARK.search(text) is not None


def read_go(texts: Mapping[Path, str], units: Sequence[str] = ()) -> Recording:
    """Files of one date are a session; the one with `toolchain: Base`, or else whose label is on most dates, is its
    baseline. Base and experiment are different code."""
    files = [_file(path, text) for path, text in texts.items()]
    _find_bases(files)
    series = []
    for session, baseline, candidate in _sessions(files):
        wanted = _units([*baseline, *candidate], units)
        for key in dict.fromkeys([*baseline, *candidate]):
            if key[1] in wanted:
                name, unit = key
                values = baseline.get(key, []), candidate.get(key, [])
                series.append(Series(session, name, unit, _worse(unit), *values))
    return Recording(tuple(series), same_code=False)


def _file(path: Path, text: str) -> _File:
    name = path.name
    found = next((match for form in _DATES if (match := form.search(name))), None)
    settings = dict(_settings(text))
    date = found.group() if found else settings.get("runstamp") or settings.get("bentstamp") or name
    label = name[: found.start()].strip(".-_") if found else name
    return _File(date, label, settings.get("toolchain", "").lower() == "base", _values(text))


def _settings(text: str) -> Iterator[tuple[str, str]]:
    """The `key: value` lines at the head of the file."""
    for line in text.splitlines():
        if line.startswith("Benchmark"):
            return
        key, colon, value = line.partition(":")
        if colon and " " not in key:
            yield key.strip(), value.strip()


def _values(text: str) -> Values:
    """Every run of every benchmark; a name that several packages have is told apart by its package."""
    found: Values = {}
    package = ""
    for line in text.splitlines():
        if line.startswith("pkg:"):
            package = line.removeprefix("pkg:").strip()
        if not line.startswith("Benchmark"):
            continue
        name, *fields = line.split()
        name = f"{package}:{name}" if package else name
        for value, unit in zip(fields[1::2], fields[2::2], strict=False):
            found.setdefault((name, unit), []).append(_number(value))
    return found


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float("nan")


def _find_bases(files: list[_File]) -> None:
    """Where no file of a date says that it is the base, the label that most dates have is."""
    labels = Counter(file.label for file in files)
    for date in {file.date for file in files}:
        group = [file for file in files if file.date == date]
        if not any(file.is_base for file in group):
            max(group, key=lambda file: labels[file.label]).is_base = True


def _sessions(files: list[_File]) -> Iterator[tuple[str, Values, Values]]:
    """(name, baseline, candidate); a date's further files are sessions of one side."""
    for date in sorted({file.date for file in files}):
        group = [file for file in files if file.date == date]
        bases = [file for file in group if file.is_base]
        others = [file for file in group if not file.is_base]
        yield date, bases[0].values, others[0].values if others else {}
        for file in (*bases[1:], *others[1:]):
            yield f"{date} {file.label}", file.values, {}


def _units(keys: Sequence[tuple[str, str]], asked: Sequence[str]) -> set[str]:
    known = {unit for _, unit in keys}
    if asked:
        return known & set(asked)
    return {_USUAL_UNIT} if _USUAL_UNIT in known else known


def _worse(unit: str) -> Worse:
    return "lower" if _MORE_IS_BETTER.search(unit) else "higher"
