"""`--trace`, `--limit`, `--scale-time`, `--scale-tokens`: a recorded workload put into a suite."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

from kvbench.console import plain
from kvbench.errors import UsageError
from kvbench.spec.cases import expand_all, kinds_of
from kvbench.spec.edit import drop_fixed, set_fixed
from kvbench.spec.identity import SYNTHETIC_ONLY
from kvbench.spec.load import LoadedSuite, from_effective
from kvbench.spec.matrix import read_matrix

_TRACE_HINT = "kvbench sweep traffic --trace FILE runs a suite that is made for traces"


def with_trace(
    loaded: LoadedSuite,
    path: str | Path | None,
    *,
    limit: int | None = None,
    scale_time: float | None = None,
    scale_tokens: str | float | None = None,
    format: str | None = None,
) -> LoadedSuite:
    """The suite on this trace, `path` None for the suite's own.

    What a trace decides (lengths, sharing, sessions) leaves the suite; its arrivals stay, and are the recorded ones
    when it names none. Raises UsageError when the suite varies what a trace decides, when an option would have no
    effect, or when a value is out of range.
    """
    options = {"limit": limit, "scale_time": scale_time, "scale_tokens": scale_tokens, "format": format}
    given = {key: value for key, value in options.items() if value is not None}
    if path is None and not given:
        return loaded
    _refuse_misfit(loaded, path, given)
    data = copy.deepcopy(loaded.effective)
    if path is not None:
        _put_trace(data, _trace_text(path))
    for key, value in given.items():
        _replace(data, f"workload.{key}", value)
    changes = [f"--trace {path}"] if path is not None else []
    changes += [f"--{key.replace('_', '-')} {value}" for key, value in given.items()]
    changed = from_effective(
        data,
        path=loaded.path,
        text=loaded.text,
        changes=(*loaded.changes, *changes),
        what=f"suite {loaded.suite.name} with {' '.join(changes)}",
    )
    _refuse_moot_options(changed, given)
    return changed


def _refuse_misfit(loaded: LoadedSuite, path: str | Path | None, given: dict[str, Any]) -> None:
    suite = loaded.suite
    matrix = read_matrix({"axes": suite.axes, "zip": suite.zip})
    if "engine" not in kinds_of(suite, matrix):
        raise UsageError(f"suite {suite.name} has no engine cases, so it reads no trace", hint=_TRACE_HINT)
    if path is None and suite.workload.source != "trace":
        options = ", ".join(f"--{key.replace('_', '-')}" for key in given)
        raise UsageError(f"{options}: suite {suite.name} reads no trace", hint="give one with --trace FILE")
    varied = [key for dimension in matrix.dimensions for key in dimension.keys]
    set_by_trace = [f"workload.{key}" for key in (*SYNTHETIC_ONLY, "source", "trace", *given)]
    clashing = [key for key in varied if any(key == name or key.startswith(f"{name}.") for name in set_by_trace)]
    if clashing:
        text = f"suite {suite.name} varies {', '.join(clashing)}, which the trace or its options decide"
        raise UsageError(text, hint=_TRACE_HINT)


def _put_trace(data: dict[str, Any], path: str) -> None:
    for key in SYNTHETIC_ONLY:
        drop_fixed(data, f"workload.{key}")
    _replace(data, "workload.source", "trace")
    _replace(data, "workload.trace", path)
    keys = {key for group in (data.get("axes", {}), *data.get("zip", [])) for key in group}
    if "kind" not in data["workload"].get("arrival", {}) and "workload.arrival.kind" not in keys:
        set_fixed(data, "workload.arrival.kind", "recorded")


def _replace(data: dict[str, Any], key: str, value: Any) -> None:
    drop_fixed(data, key)
    set_fixed(data, key, value)


def _refuse_moot_options(changed: LoadedSuite, given: dict[str, Any]) -> None:
    moot = expand_all(changed.suite).moot_everywhere
    for key in given:
        if why := moot.get(f"workload.{key}"):
            raise UsageError(f"--{key.replace('_', '-')} has no effect while {why}", hint="leave it out")


def _trace_text(path: str | Path) -> str:
    """The path as it is stored. Raises UsageError for one that no suite could hold."""
    text = str(path)
    if not text or not text.isprintable():
        raise UsageError(f"{plain(text)!r} cannot be the path of a trace", hint="rename the file")
    return text
