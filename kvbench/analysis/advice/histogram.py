"""Histograms of lengths in CSV files, in three forms told by their header:

* `length,count`: exact lengths of one side, prompts or outputs;
* `low,high,count`: bins [low, high), or [low, high] where each bin begins one above the end of the one before;
* `input_tokens,output_tokens,count`: pairs, so that the two sides need not be independent.

A column `requests` is the same as `count`. Counts are whole numbers of requests, or shares.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kvbench.analysis.advice.lengths import Floats, Ints
from kvbench.analysis.advice.sides import MOST_ROWS, Side, weights_of
from kvbench.errors import UsageError
from kvbench.workload.importers.files import TraceFile
from kvbench.workload.importers.rows import MalformedError, shown, tokens_in
from kvbench.workload.importers.tables import CsvTable

_MOST_REQUESTS = 1e15
_COUNTS = ("count", "requests")
_FORMS = (("input_tokens", "output_tokens"), ("low", "high"), ("length",))
_HINT = (
    "a histogram is CSV with the columns length,count or low,high,count (one side), or "
    "input_tokens,output_tokens,count (both); lengths are plain token counts"
)


@dataclass(frozen=True, slots=True)
class Pairs:
    """Counted pairs of lengths."""

    label: str
    inputs: Ints
    outputs: Ints
    weight: Floats
    requests: int | None

    def rows(self) -> tuple[Ints, Ints, int]:
        """Every pair as often as it is counted (or, for shares and above a million, in proportion), and the number of
        requests."""
        points = self.requests if self.requests is not None and self.requests <= MOST_ROWS else MOST_ROWS
        ends = np.cumsum(self.weight)
        at = (np.arange(points) + 0.5) * (ends[-1] / points)
        chosen = np.minimum(np.searchsorted(ends, at, side="right"), len(ends) - 1)
        return self.inputs[chosen], self.outputs[chosen], self.requests or points


def read_histogram(path: str | Path) -> Side | Pairs:
    """The histogram in a file, plain or gzip. Raises `UsageError` with file and line for what is not understood."""
    file = TraceFile(path)
    try:
        form, rows = _read(file)
    except MalformedError as error:
        raise file.error(str(error), hint=_HINT) from None
    if not rows:
        raise UsageError(f"{path} has no row under its header", hint=_HINT)
    weight, requests = weights_of(np.array([row[-1] for row in rows]), str(path))
    lengths = np.array([row[:-1] for row in rows], dtype=np.int64).reshape(len(rows), -1)
    kept = weight > 0  # what is too rare for a float64 beside the others counts as none
    lengths, weight = lengths[kept], weight[kept]
    label = Path(path).name
    if form == _FORMS[0]:
        return Pairs(label, lengths[:, 0], lengths[:, 1], weight, requests)
    order = np.argsort(lengths[:, 0], kind="stable")
    lengths, weight = lengths[order], weight[order]
    if form == _FORMS[2]:
        return Side(label, lengths[:, 0], lengths[:, 0], weight, requests)
    low, high, notes = _bins(lengths[:, 0], lengths[:, 1], str(path))
    return Side(label, low, high, weight, requests, notes)


def _read(file: TraceFile) -> tuple[tuple[str, ...], list[tuple[float, ...]]]:
    file.first_line()
    table = CsvTable(file)
    table.header = [name.strip().lower() for name in table.header]
    form = next((form for form in _FORMS if set(form) <= set(table.header)), None)
    count = next((name for name in _COUNTS if name in table.header), None)
    if form is None or count is None:
        raise MalformedError(f"no histogram has the columns {', '.join(shown(x) for x in table.header[:8])}")
    places, at = table.columns(form), table.columns([count])[0]
    return form, [(*(_length(r[p], n) for p, n in zip(places, form, strict=True)), _count(r[at])) for r in table]


def _length(text: str, column: str) -> int:
    tokens = tokens_in(text, column)
    if tokens < (0 if column == "low" else 1):
        raise MalformedError(f"{column} is {tokens}, and a length is at least one token")
    return tokens


def _count(text: str) -> float:
    try:
        count = float(text)
    except ValueError:
        raise MalformedError(f"count is {shown(text.strip())}, not a number") from None
    if not 0 <= count <= _MOST_REQUESTS:
        raise MalformedError(f"count is {shown(text.strip())}, not a number of requests or a share")
    return count


def _bins(low: Ints, high: Ints, path: str) -> tuple[Ints, Ints, tuple[str, ...]]:
    """First and last length of every bin."""
    notes = []
    touches = bool(len(low) > 1 and (low[1:] == high[:-1] + 1).all())
    last = high if touches else high - 1
    if touches:
        notes.append(f"{path}: bins include their upper end, since each begins one above the end of the one before")
    if (last < low).any():
        at = int(np.flatnonzero(last < low)[0])
        raise UsageError(f"{path}: the bin {low[at]} … {high[at]} holds no length", hint="bins are [low, high)")
    if (low[1:] <= last[:-1]).any():
        at = int(np.flatnonzero(low[1:] <= last[:-1])[0])
        raise UsageError(f"{path}: the bins from {low[at]} and {low[at + 1]} overlap", hint="bins are [low, high)")
    if low[0] == 0:
        notes.append(f"{path}: the first bin begins at 0, and a request has at least one token: taken from 1 on")
        if last[0] == 0:
            raise UsageError(f"{path}: a bin holds the length 0 only", hint="a length is at least one token")
    return np.maximum(low, 1), last, tuple(notes)
