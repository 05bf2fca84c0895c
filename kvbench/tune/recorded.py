"""Recorded tuning spaces: every configuration was timed once, so a search can be replayed without its device.

Read are Kernel Tuner's cache files (T1 times beside `tune_params`) and T4 results (`results`, with `configuration`,
`measurements` and `invalidity`), plain or gzip.
"""

from __future__ import annotations

import gzip
import json
import math
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvbench.errors import UsageError
from kvbench.tune.space import Space

_HINT = "give a cache file of Kernel Tuner, or results in its T4 format"


@dataclass(frozen=True)
class Recording:
    """`times` `[n]` in the file's unit, infinite where a configuration was recorded as failed."""

    name: str
    space: Space
    times: NDArray[np.float64]
    objective: str

    @property
    def best(self) -> float:
        return float(self.times.min())

    @property
    def failed(self) -> int:
        return int(np.isinf(self.times).sum())


def read_recording(path: str | Path) -> Recording:
    """`UsageError` for a file that is no recorded space, or one in which nothing succeeded."""
    path = Path(path)
    data = _load(path)
    try:
        objective = _objective(data)
        names, rows = _rows(data, objective)
        space = _space(names, [values for values, _ in rows])
    except _NotRecordedError as error:
        raise UsageError(f"{path}: {error}", hint=_HINT) from None
    times = np.array([time for _, time in rows], dtype=np.float64)
    if not np.isfinite(times).any():
        raise UsageError(f"{path}: no configuration was timed", hint="a space in which something succeeded is needed")
    return Recording(path.name.removesuffix(".gz").removesuffix(".json"), space, times, objective)


class _NotRecordedError(Exception):
    """What is wrong with the file, without its name."""


def _load(path: Path) -> dict[str, Any]:
    try:
        raw = path.read_bytes()
        data = json.loads(gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise UsageError(f"{path} is no whole gzip file: {error}", hint=_HINT) from None
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}", hint=_HINT) from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not JSON: {error}", hint=_HINT) from None
    if not isinstance(data, dict):
        raise UsageError(f"{path}: no object with a cache or results", hint=_HINT)
    return data


def _objective(data: dict[str, Any]) -> str:
    found = data.get("objective", "time")
    found = found[0] if isinstance(found, list) and len(found) == 1 else found
    if not isinstance(found, str):
        raise _NotRecordedError(f"objective should be one name, not {found!r}")
    return found


def _rows(data: dict[str, Any], objective: str) -> tuple[list[str], list[tuple[dict[str, Any], float]]]:
    """Names of the parameters, and of every entry its values and its time."""
    cache, results = data.get("cache"), data.get("results")
    if isinstance(cache, dict) and cache:
        rows = [_cached(key, row, objective) for key, row in cache.items()]
        names = data.get("tune_params_keys") or data.get("tune_params")
    elif isinstance(results, list) and results:
        rows = [_result(at, row, objective) for at, row in enumerate(results)]
        names = list(rows[0][0])
    else:
        raise _NotRecordedError("no cache and no results with an entry")
    names = list(names) if isinstance(names, list | dict) else []
    if not names or not all(isinstance(name, str) for name in names):
        raise _NotRecordedError("no names of parameters")
    if len(set(names)) < len(names):
        raise _NotRecordedError("a parameter is named twice")
    return names, rows


def _cached(key: str, row: Any, objective: str) -> tuple[dict[str, Any], float]:
    """A failed configuration has the failure's name where its time would be."""
    if not isinstance(row, dict):
        raise _NotRecordedError(f"cache entry {key!r} is no object")
    return row, _time(row.get(objective), f"cache entry {key!r}")


def _result(at: int, row: Any, objective: str) -> tuple[dict[str, Any], float]:
    where = f"result {at + 1}"
    if not isinstance(row, dict) or not isinstance(row.get("configuration"), dict):
        raise _NotRecordedError(f"{where} has no configuration")
    measurements = row.get("measurements", [])
    if not isinstance(measurements, list) or not all(isinstance(one, dict) for one in measurements):
        raise _NotRecordedError(f"measurements of {where} are no list of objects")
    measured = {one["name"]: one.get("value") for one in measurements if isinstance(one.get("name"), str)}
    is_good = row.get("invalidity", "correct") == "correct"
    return row["configuration"], _time(measured.get(objective), where) if is_good else math.inf


def _time(value: Any, where: str) -> float:
    """Infinite for whatever is no number, and from 1e19 on: Kernel Tuner's failures are text, or 1e20."""
    if not isinstance(value, int | float) or isinstance(value, bool) or value != value:
        return math.inf
    if value <= 0:
        raise _NotRecordedError(f"time of {where} should be above 0, not {value!r}")
    return float(value) if value < 1e19 else math.inf


def _space(names: list[str], rows: list[dict[str, Any]]) -> Space:
    seen: dict[tuple[Any, ...], None] = {}
    for at, row in enumerate(rows):
        if lacking := [name for name in names if name not in row]:
            raise _NotRecordedError(f"configuration {at + 1} lacks {lacking[0]}")
        if wrong := [name for name in names if not _is_value(row[name])]:
            raise _NotRecordedError(f"configuration {at + 1}: {wrong[0]} should be a number, text or a switch")
        values = tuple(row[name] for name in names)
        if values in seen:
            raise _NotRecordedError(f"configuration {at + 1} is there twice: {dict(zip(names, values, strict=True))}")
        seen[values] = None
    return Space(tuple(names), tuple(seen))


def _is_value(value: Any) -> bool:
    is_number = isinstance(value, int | float) and abs(value) < 1e300
    return isinstance(value, str) or is_number
