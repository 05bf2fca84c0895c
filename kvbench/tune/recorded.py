"""Recorded tuning spaces: every configuration was timed once, so a search can be replayed without its device.

Read are Kernel Tuner's cache files (T1 times beside `tune_params`) and T4 results (`results`, with `configuration`,
`measurements` and `invalidity`), plain or gzip.
"""

from __future__ import annotations

import gzip
import json
import math
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
    objective = str(data.get("objective", "time"))
    if isinstance(data.get("cache"), dict):
        rows = [_cached(row, objective) for row in data["cache"].values()]
        names = data.get("tune_params_keys") or list(data.get("tune_params", {}))
    elif isinstance(data.get("results"), list):
        rows = [_result(row, objective) for row in data["results"]]
        names = list(rows[0][0]) if rows else []
    else:
        raise UsageError(f"{path} is no recorded tuning space", hint=_HINT)
    return _recording(path, names, rows, objective)


def _recording(path: Path, names: list[str], rows: list[tuple[dict[str, Any], float]], objective: str) -> Recording:
    try:
        configurations = tuple(tuple(values[name] for name in names) for values, _ in rows)
        times = np.array([time for _, time in rows], dtype=np.float64)
        space = Space(tuple(names), configurations)
    except (KeyError, TypeError) as error:
        raise UsageError(f"{path}: a configuration lacks {error}", hint=_HINT) from None
    if not np.isfinite(times).any():
        raise UsageError(f"{path}: no configuration was timed", hint="a space in which something succeeded is needed")
    return Recording(path.name.removesuffix(".gz").removesuffix(".json"), space, times, objective)


def _load(path: Path) -> dict[str, Any]:
    try:
        raw = path.read_bytes()
        text = gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
        data = json.loads(text)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}", hint=_HINT) from None
    except (ValueError, EOFError) as error:
        raise UsageError(f"{path} is not JSON: {error}", hint=_HINT) from None
    if not isinstance(data, dict):
        raise UsageError(f"{path} is no recorded tuning space", hint=_HINT)
    return data


def _cached(row: dict[str, Any], objective: str) -> tuple[dict[str, Any], float]:
    """A failed configuration has the failure's name where its time would be."""
    return row, _time(row.get(objective))


def _result(row: dict[str, Any], objective: str) -> tuple[dict[str, Any], float]:
    measured = {m.get("name"): m.get("value") for m in row.get("measurements", ())}
    is_good = row.get("invalidity", "correct") == "correct"
    return row["configuration"], _time(measured.get(objective)) if is_good else math.inf


def _time(value: Any) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and math.isfinite(value) and 0 < value < 1e19 else math.inf
