"""Readers of recorded series: Go benchmark text, and a CSV, Parquet or JSON of our own; text plain or gzip, files or
folders.

CSV and Parquet have one value a row under the columns `session, case, side, value` and, where known, `metric, worse,
block, first`; the JSON is `{"format": "kvbench-gate-series", "version": 1, "series": [{"session", "case", "metric",
"worse", "baseline": […], "candidate": […], "order": […]}, …]}`. In all of them both sides must be the same code.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import zlib
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from kvbench.analysis.gate.go_text import is_go_text, read_go
from kvbench.analysis.gate.series import Recording, Series
from kvbench.analysis.gate.types import Worse
from kvbench.errors import DataError, UsageError

FORMAT, VERSION = "kvbench-gate-series", 1
_SUFFIXES = (".txt", ".csv", ".json", ".gz", ".bench", ".parquet")
_HINT = "give Go benchmark text, or the CSV, Parquet or JSON that docs/measurement.md describes"
_SIDES = ("baseline", "candidate")
_PARQUET = b"PAR1"


def read_recordings(paths: Sequence[str | Path], units: Sequence[str] = ()) -> list[Recording]:
    """The recordings in files and folders: one of all Go texts together, one of each other file.

    `units` are the units of Go text to keep; without any, `ns/op` where it is there, else all.

    Raises:
        UsageError: a path that cannot be read or is in no known format.
        DataError: nothing was recorded.
    """
    files = [file for path in paths for file in _files(Path(path))]
    texts = {file: _text(file) for file in files}
    go = {file: text for file, text in texts.items() if is_go_text(text)}
    found = [_own(file, text) for file, text in texts.items() if file not in go]
    if go:
        found.insert(0, read_go(go, units))
    if not any(recording.series for recording in found):
        raise DataError("no series in " + ", ".join(map(str, paths)), hint=_HINT)
    return found


def shipped() -> Path:
    """The recording that comes with kvbench."""
    return Path(__file__).parent / "data"


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    found = sorted(file for file in path.iterdir() if file.is_file() and file.suffix in _SUFFIXES)
    if not found:
        raise UsageError(f"no recorded series in {path}", hint=_HINT)
    return found


def _text(path: Path) -> str:
    try:
        raw = path.read_bytes()
        if raw[:4] == _PARQUET:
            return _csv_of(path)
        return (gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw).decode("utf-8-sig")
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UsageError(f"{path} is a broken gzip file: {error}", hint="fetch it again") from None
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}", hint=_HINT) from None
    except UnicodeDecodeError:
        raise UsageError(f"{path} is not UTF-8 text", hint=_HINT) from None


def _csv_of(path: Path) -> str:
    """A Parquet table as CSV: what holds for one then holds for the other."""
    import pyarrow
    import pyarrow.csv
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.read_table(path)
        sink = io.BytesIO()
        pyarrow.csv.write_csv(table, sink)
    except (pyarrow.ArrowException, OSError) as error:
        raise UsageError(f"{path} is no readable Parquet table: {error}", hint=_HINT) from None
    return sink.getvalue().decode("utf-8")


def _own(path: Path, text: str) -> Recording:
    series = _from_json(path, text) if text.lstrip()[:1] in ("{", "[") else _from_csv(path, text)
    return Recording(tuple(series), same_code=True)


def _from_csv(path: Path, text: str) -> list[Series]:
    reader = csv.DictReader(io.StringIO(text))
    missing = [name for name in ("session", "case", "side", "value") if name not in (reader.fieldnames or ())]
    if missing:
        raise UsageError(f"{path} is no recorded series: no column {', '.join(missing)}", hint=_HINT)
    rows = [_row(path, line, row) for line, row in enumerate(reader, start=2)]
    rows.sort(key=lambda row: row["key"])
    found = []
    for (session, case, metric), group in groupby(rows, key=lambda row: row["key"]):
        found.append(_assembled(path, session, case, metric, list(group)))
    return found


def _row(path: Path, line: int, row: dict[str, Any]) -> dict[str, Any]:
    side, where = (row["side"] or "").strip(), f"{path}, line {line}"
    if side not in _SIDES:
        raise UsageError(f"{where}: side {side!r} is neither baseline nor candidate", hint=_HINT)
    block = row.get("block") or ""
    if block and not block.strip().isdigit():
        raise UsageError(f"{where}: block {block!r} is no whole number", hint=_HINT)
    return {
        "key": (row["session"] or "", row["case"] or "", row.get("metric") or "value"),
        "worse": _worse(row.get("worse") or "higher", where),
        "block": int(block) if block else None,
        "side": side,
        "first": (row.get("first") or "").strip(),
        "value": _number(row["value"]),
    }


def _assembled(path: Path, session: str, case: str, metric: str, rows: list[dict[str, Any]]) -> Series:
    """Values in the order of their blocks, NaN where a side has none; without blocks in the order of the file."""
    one = Series(session, case, metric, rows[0]["worse"])
    if any(row["block"] is None for row in rows):
        one.baseline = [row["value"] for row in rows if row["side"] == "baseline"]
        one.candidate = [row["value"] for row in rows if row["side"] == "candidate"]
        return one
    values = {(row["block"], row["side"]): row for row in rows}
    if len(values) < len(rows):
        raise UsageError(f"{path}: a block of {case!r} in {session!r} has a side twice", hint=_HINT)
    sides = [side for side in _SIDES if any(row["side"] == side for row in rows)]
    for block in sorted({row["block"] for row in rows}):
        for side in sides:
            getattr(one, side).append(values[block, side]["value"] if (block, side) in values else float("nan"))
        firsts = {values[block, side]["first"] for side in sides if (block, side) in values}
        one.order.append({"baseline": 1, "candidate": -1}.get(next(iter(firsts)), 0) if len(firsts) == 1 else 0)
    one.order = one.order if any(one.order) else []
    return one


def _from_json(path: Path, text: str) -> list[Series]:
    try:
        data = json.loads(text)
    except ValueError as error:
        raise UsageError(f"{path} is not JSON: {error}", hint=_HINT) from None
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise UsageError(f"{path} is no recorded series", hint=_HINT)
    if not isinstance(data.get("version"), int) or data["version"] > VERSION:
        raise UsageError(f"{path} was written by a newer kvbench", hint="update kvbench")
    if not isinstance(data.get("series"), list):
        raise UsageError(f"{path} has no list of series", hint=_HINT)
    return [_series(f"{path}, series {number}", row) for number, row in enumerate(data["series"], start=1)]


def _series(where: str, row: Any) -> Series:
    if not isinstance(row, dict) or not {"session", "case"} <= set(row):
        raise UsageError(f"{where}: no session or no case", hint=_HINT)
    lists = {name: row.get(name, []) for name in (*_SIDES, "order")}
    for name, values in lists.items():
        if not isinstance(values, list):
            raise UsageError(f"{where}: {name} is no list", hint=_HINT)
    if any(value not in (1, -1) for value in lists["order"]) or len(lists["order"]) not in (0, len(lists["baseline"])):
        raise UsageError(f"{where}: order is not 1 or -1 for each block", hint=_HINT)
    return Series(
        session=str(row["session"]),
        case=str(row["case"]),
        metric=str(row.get("metric", "value")),
        worse=_worse(str(row.get("worse", "higher")), where),
        baseline=[_number(value) for value in lists["baseline"]],
        candidate=[_number(value) for value in lists["candidate"]],
        order=lists["order"],
    )


def _worse(text: str, where: str) -> Worse:
    if text == "higher":
        return "higher"
    if text == "lower":
        return "lower"
    raise UsageError(f"{where}: worse {text!r} is neither higher nor lower", hint=_HINT)


def _number(value: Any) -> float:
    """A number, or NaN for what is none: the block that it belongs to is then left out."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return float("nan")
